/* report_load HOST PORT TEMPLATES NODES HEARTBEAT_SECONDS OPEN_SECONDS [CA CERTIFICATES KEY]
 *
 * Nodes that report to an aggregator, each on a connection of its own: hello, snapshot, then with each heartbeat a
 * delta with new readings of all GPUs, which is the most that an honest node sends. They open within OPEN_SECONDS, and
 * come back when they are cut off as the product's nodes do: after a random part of the time that the aggregator has
 * named. CERTIFICATES holds one certificate a node, all for the key in KEY.
 *
 * Each second one JSON line: the time by CLOCK_MONOTONIC, connections that are open, nodes whose state the aggregator
 * has acknowledged on their present connection, connections begun, deltas sent, and what was refused or asked for again.
 * Ends with standard input. */
#define _GNU_SOURCE
#include <errno.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "connection.h"
#include "templates.h"

#define FIRST_REVISION 20000u /* three bytes as a varint, like all that follow it */
#define LAST_REVISION 2000000u
#define SHORTEST_PAUSE 0.2
#define LONGEST_PAUSE 5.0
#define JITTER 0.2
#define LOOK_SECONDS 0.005
#define TELL_SECONDS 1.0

struct node {
    struct connection connection;
    int open, acknowledged;
    double due; /* when to connect, or to send the next delta */
    double pause, spread;
    uint32_t revision;
    uint32_t watched; /* the events that epoll was asked for */
};

struct load {
    const char *host;
    int port, epoll;
    double heartbeat;
    struct templates templates;
    unsigned char *message;
    SSL_CTX *tls;
    X509 **certificates;
    EVP_PKEY *key;
    struct node *nodes;
    unsigned count, open, acknowledged;
    unsigned long begun, sent, refused, resent;
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static double chance(void)
{
    return drand48();
}

static void fail(const char *what)
{
    fprintf(stderr, "report_load: %s\n", what);
    exit(1);
}

static void watch(struct load *load, struct node *node)
{
    uint32_t wanted = EPOLLIN;
    if (connection_wants_to_write(&node->connection))
        wanted |= EPOLLOUT;
    if (wanted == node->watched)
        return;
    struct epoll_event event = {.events = wanted, .data.ptr = node};
    epoll_ctl(load->epoll, node->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, node->connection.fd, &event);
    node->watched = wanted;
}

static void send_message(struct load *load, struct node *node, enum message kind)
{
    const struct message_template *template = &load->templates.messages[kind];
    /* The difference of two pointers into one array is the node's number. */
    unsigned number = (unsigned)(node - load->nodes);
    template_fill(template, number, node->revision, node->revision + 1, 40.0 + node->revision % 40, load->message);
    connection_send(&node->connection, load->message, template->length);
}

static void lose(struct load *load, struct node *node)
{
    connection_close(&node->connection);
    load->open -= (unsigned)node->open;
    load->acknowledged -= (unsigned)node->acknowledged;
    node->open = node->acknowledged = 0;
    node->watched = 0;
    double most = node->pause > node->spread ? node->pause : node->spread;
    node->due = now() + most * chance() + SHORTEST_PAUSE / 2;
    node->pause = node->pause * 2 < LONGEST_PAUSE ? node->pause * 2 : LONGEST_PAUSE;
}

static void step(struct load *load, struct node *node)
{
    struct heard heard = {.spread_seconds = -1};
    int ended = connection_step(&node->connection, &heard) != 0;
    load->refused += heard.refusals;
    load->resent += heard.resends;
    if (heard.welcomes) {
        node->pause = SHORTEST_PAUSE;
    }
    if (heard.spread_seconds >= 0)
        node->spread = heard.spread_seconds;
    if (heard.acknowledgements && !node->acknowledged) {
        node->acknowledged = 1;
        load->acknowledged++;
    }
    if (heard.resends && !ended)
        send_message(load, node, MESSAGE_SNAPSHOT);
    if (ended)
        lose(load, node);
    else
        watch(load, node);
}

static void open_node(struct load *load, struct node *node)
{
    SSL *tls = NULL;
    if (load->tls != NULL) {
        tls = SSL_new(load->tls);
        if (tls == NULL || SSL_use_certificate(tls, load->certificates[node - load->nodes]) != 1 ||
            SSL_use_PrivateKey(tls, load->key) != 1)
            fail("a certificate can't be used");
    }
    load->begun++;
    node->open = 1;
    load->open++;
    if (connection_open(&node->connection, load->host, load->port, tls) != 0) {
        lose(load, node);
        return;
    }
    send_message(load, node, MESSAGE_HELLO);
    send_message(load, node, MESSAGE_SNAPSHOT);
    node->due = now() + load->heartbeat * chance();
    step(load, node);
}

static void look(struct load *load)
{
    double at = now();
    for (unsigned index = 0; index < load->count; index++) {
        struct node *node = &load->nodes[index];
        if (node->due > at)
            continue;
        if (!node->open) {
            open_node(load, node);
            continue;
        }
        node->due = at + load->heartbeat * (1 + JITTER * (2 * chance() - 1));
        /* One that is not welcome yet, or can't keep up, skips: state is latest-wins. */
        if (!node->acknowledged || node->connection.held.begin < node->connection.held.end)
            continue;
        send_message(load, node, MESSAGE_DELTA);
        node->revision = node->revision < LAST_REVISION ? node->revision + 1 : FIRST_REVISION;
        load->sent++;
        step(load, node);
    }
}

static void read_certificates(struct load *load, const char *authority, const char *certificates, const char *key)
{
    static const unsigned char protocols[] = "\x02h2";
    FILE *file = fopen(certificates, "r");
    FILE *key_file = fopen(key, "r");
    load->tls = SSL_CTX_new(TLS_client_method());
    load->certificates = calloc(load->count, sizeof *load->certificates);
    if (file == NULL || key_file == NULL || load->tls == NULL || load->certificates == NULL)
        fail("can't open the certificates");
    if (SSL_CTX_load_verify_locations(load->tls, authority, NULL) != 1)
        fail("can't read the authority");
    SSL_CTX_set_verify(load->tls, SSL_VERIFY_PEER, NULL);
    /* Ten thousand connections: what OpenSSL need not keep, it should not. */
    SSL_CTX_set_mode(load->tls, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                    SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (SSL_CTX_set_alpn_protos(load->tls, protocols, sizeof protocols - 1) != 0)
        fail("can't ask for HTTP/2");
    load->key = PEM_read_PrivateKey(key_file, NULL, NULL, NULL);
    for (unsigned index = 0; index < load->count; index++) {
        load->certificates[index] = PEM_read_X509(file, NULL, NULL, NULL);
        if (load->certificates[index] == NULL)
            fail("there are fewer certificates than nodes");
    }
    fclose(file);
    fclose(key_file);
}

static void tell(const struct load *load)
{
    printf("{\"at\": %.3f, \"open\": %u, \"acknowledged\": %u, \"begun\": %lu, \"sent\": %lu, \"refused\": %lu, "
           "\"resent\": %lu}\n",
           now(), load->open, load->acknowledged, load->begun, load->sent, load->refused, load->resent);
    fflush(stdout);
}

int main(int count, char **arguments)
{
    struct load load = {0};
    struct epoll_event events[512];
    if (count != 7 && count != 10)
        fail("usage: HOST PORT TEMPLATES NODES HEARTBEAT_SECONDS OPEN_SECONDS [CA CERTIFICATES KEY]");
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    load.host = arguments[1];
    load.port = atoi(arguments[2]);
    templates_read(arguments[3], &load.templates);
    load.count = (unsigned)strtoul(arguments[4], NULL, 10);
    load.heartbeat = strtod(arguments[5], NULL);
    double open_seconds = strtod(arguments[6], NULL);
    if (count == 10)
        read_certificates(&load, arguments[7], arguments[8], arguments[9]);
    uint32_t longest = 0;
    for (int kind = 0; kind < MESSAGE_KINDS; kind++)
        if (load.templates.messages[kind].length > longest)
            longest = load.templates.messages[kind].length;
    load.message = malloc(longest);
    load.nodes = calloc(load.count, sizeof *load.nodes);
    load.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (load.message == NULL || load.nodes == NULL || load.epoll < 0)
        fail("no memory");
    srand48(getpid());
    double begun = now(), told = begun;
    for (unsigned index = 0; index < load.count; index++) {
        load.nodes[index].connection.fd = -1;
        load.nodes[index].revision = FIRST_REVISION;
        load.nodes[index].pause = SHORTEST_PAUSE;
        load.nodes[index].due = begun + open_seconds * index / load.count;
    }
    /* NULL in an event is standard input, whose end is ours. */
    struct epoll_event input = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(load.epoll, EPOLL_CTL_ADD, STDIN_FILENO, &input) != 0)
        fail("standard input can't be waited for; give it a pipe");
    for (;;) {
        int ready = epoll_wait(load.epoll, events, 512, 2);
        for (int index = 0; index < ready; index++) {
            struct node *node = events[index].data.ptr;
            if (node == NULL) {
                tell(&load);
                return 0;
            }
            if (node->open)
                step(&load, node);
        }
        static double looked;
        if (now() - looked >= LOOK_SECONDS) {
            looked = now();
            look(&load);
        }
        if (now() - told >= TELL_SECONDS) {
            told = now();
            tell(&load);
        }
    }
}
