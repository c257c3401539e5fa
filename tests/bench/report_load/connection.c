#define _GNU_SOURCE
#include "connection.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    FRAME_DATA = 0,
    FRAME_HEADERS = 1,
    FRAME_RST_STREAM = 3,
    FRAME_SETTINGS = 4,
    FRAME_PING = 6,
    FRAME_GOAWAY = 7,
    FRAME_WINDOW_UPDATE = 8,
    FLAG_ACK = 1,
    FLAG_END_STREAM = 1,
    FLAG_END_HEADERS = 4,
    SETTING_INITIAL_WINDOW = 4,
    STREAM = 1,
    FRAME_HEAD = 9,
    GRPC_HEAD = 5,
    MOST_OF_A_FRAME = 16384,
    DEFAULT_WINDOW = 65535,
    /* Windows are given back in pieces of this size, not with each ack. */
    GIVE_BACK = 16384,
};

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/* HPACK: indexed and literal fields without a table. POST, the path, the authority, application/grpc, te: trailers. */
static const char headers_plain[] = "\x83\x86\x04\x23/hypervisor.v1.ReportService/Report\x01\x09localhost"
                                    "\x0f\x10\x10"
                                    "application/grpc\x00\x02te\x08trailers";
static const char headers_tls[] = "\x83\x87\x04\x23/hypervisor.v1.ReportService/Report\x01\x09localhost"
                                  "\x0f\x10\x10"
                                  "application/grpc\x00\x02te\x08trailers";

static void append(struct buffer *buffer, const void *bytes, size_t length)
{
    if (buffer->begin == buffer->end)
        buffer->begin = buffer->end = 0;
    if (buffer->end + length > buffer->room) {
        memmove(buffer->bytes, buffer->bytes + buffer->begin, buffer->end - buffer->begin);
        buffer->end -= buffer->begin;
        buffer->begin = 0;
        if (buffer->end + length > buffer->room) {
            buffer->room = (buffer->end + length) * 2;
            buffer->bytes = realloc(buffer->bytes, buffer->room);
            if (buffer->bytes == NULL) {
                fprintf(stderr, "report_load: no memory\n");
                exit(1);
            }
        }
    }
    memcpy(buffer->bytes + buffer->end, bytes, length);
    buffer->end += length;
}

/* Ten thousand buffers that were once needed would be the machine's memory. */
static void drop_if_empty(struct buffer *buffer)
{
    if (buffer->begin == buffer->end) {
        free(buffer->bytes);
        memset(buffer, 0, sizeof *buffer);
    }
}

static void append_frame(struct connection *connection, int type, int flags, uint32_t stream, const void *payload,
                         size_t length)
{
    /* The casts cut numbers into the bytes of a frame's head. */
    unsigned char head[FRAME_HEAD] = {
        (unsigned char)(length >> 16), (unsigned char)(length >> 8), (unsigned char)length, (unsigned char)type,
        (unsigned char)flags,          (unsigned char)(stream >> 24), (unsigned char)(stream >> 16),
        (unsigned char)(stream >> 8),  (unsigned char)stream,
    };
    append(&connection->out, head, sizeof head);
    if (length > 0)
        append(&connection->out, payload, length);
}

static uint32_t number_at(const unsigned char *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

int connection_open(struct connection *connection, const char *host, int port, SSL *tls)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1;
    memset(connection, 0, sizeof *connection);
    connection->stream_window = connection->connection_window = connection->initial_window = DEFAULT_WINDOW;
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (connection->fd < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1)
        return -1;
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    /* The cast is how the sockets API wants every kind of address. */
    if (connect(connection->fd, (struct sockaddr *)&address, sizeof address) != 0 && errno != EINPROGRESS)
        return -1;
    connection->tls = tls;
    if (tls != NULL) {
        SSL_set_fd(tls, connection->fd);
        SSL_set_connect_state(tls);
        connection->shaking_hands = connection->handshake_writes = 1;
    }
    append(&connection->out, preface, sizeof preface - 1);
    append_frame(connection, FRAME_SETTINGS, 0, 0, NULL, 0);
    if (tls != NULL)
        append_frame(connection, FRAME_HEADERS, FLAG_END_HEADERS, STREAM, headers_tls, sizeof headers_tls - 1);
    else
        append_frame(connection, FRAME_HEADERS, FLAG_END_HEADERS, STREAM, headers_plain, sizeof headers_plain - 1);
    return 0;
}

/* Move what the windows allow from held to out. */
static void release_held(struct connection *connection)
{
    struct buffer *held = &connection->held;
    while (held->begin < held->end) {
        int64_t most = MOST_OF_A_FRAME;
        if (most > connection->stream_window)
            most = connection->stream_window;
        if (most > connection->connection_window)
            most = connection->connection_window;
        if (most <= 0)
            return;
        /* Both are positive here, and a frame is far below either type's range. */
        size_t length = (size_t)most < held->end - held->begin ? (size_t)most : held->end - held->begin;
        append_frame(connection, FRAME_DATA, 0, STREAM, held->bytes + held->begin, length);
        held->begin += length;
        connection->stream_window -= (int64_t)length;
        connection->connection_window -= (int64_t)length;
    }
    drop_if_empty(held);
}

void connection_send(struct connection *connection, const unsigned char *message, uint32_t length)
{
    unsigned char head[GRPC_HEAD] = {0, (unsigned char)(length >> 24), (unsigned char)(length >> 16),
                                     (unsigned char)(length >> 8), (unsigned char)length};
    append(&connection->held, head, sizeof head);
    append(&connection->held, message, length);
    release_held(connection);
}

int connection_wants_to_write(const struct connection *connection)
{
    if (connection->shaking_hands)
        return connection->handshake_writes;
    return connection->out.begin < connection->out.end;
}

/* The spread is a double, field 6 of Welcome and field 4 of Ack. */
static void hear_spread(const unsigned char *at, const unsigned char *end, unsigned field, struct heard *heard)
{
    /* Messages and strings are skipped by their length, numbers are varints, doubles eight bytes. */
    while (at < end) {
        unsigned tag = *at++;
        if ((tag & 7) == 2) {
            unsigned length = at < end ? *at++ : 0;
            at += length;
        } else if ((tag & 7) == 1) {
            if (tag >> 3 == field && end - at >= 8)
                memcpy(&heard->spread_seconds, at, 8);
            at += 8;
        } else {
            while (at < end && *at++ & 0x80)
                ;
        }
    }
}

/* A DATA frame holds whole messages: the server writes each by itself, and they are short. */
static void hear_messages(const unsigned char *at, size_t length, struct heard *heard)
{
    while (length >= GRPC_HEAD) {
        size_t size = number_at(at + 1);
        const unsigned char *body = at + GRPC_HEAD;
        if (size > length - GRPC_HEAD || size == 0)
            return;
        /* The first byte is the tag of the answer's kind. */
        if (body[0] == 0x0a && size >= 2) {
            heard->welcomes++;
            hear_spread(body + 2, body + size, 6, heard);
        } else if (body[0] == 0x12 && size >= 2) {
            heard->acknowledgements++;
            hear_spread(body + 2, body + size, 4, heard);
        }
        if (body[0] == 0x1a)
            heard->resends++;
        if (body[0] == 0x22)
            heard->refusals++;
        at += GRPC_HEAD + size;
        length -= GRPC_HEAD + size;
    }
}

static void take_settings(struct connection *connection, const unsigned char *payload, size_t length)
{
    for (size_t at = 0; at + 6 <= length; at += 6) {
        if ((payload[at] << 8 | payload[at + 1]) == SETTING_INITIAL_WINDOW) {
            int64_t window = number_at(payload + at + 2);
            connection->stream_window += window - connection->initial_window;
            connection->initial_window = window;
        }
    }
    append_frame(connection, FRAME_SETTINGS, FLAG_ACK, 0, NULL, 0);
}

static void give_back(struct connection *connection)
{
    /* Below 2^31 by far: it is given back as soon as it passes GIVE_BACK. */
    uint32_t bytes = (uint32_t)connection->unacknowledged_bytes;
    unsigned char raw[4] = {(unsigned char)(bytes >> 24), (unsigned char)(bytes >> 16), (unsigned char)(bytes >> 8),
                            (unsigned char)bytes};
    append_frame(connection, FRAME_WINDOW_UPDATE, 0, 0, raw, sizeof raw);
    append_frame(connection, FRAME_WINDOW_UPDATE, 0, STREAM, raw, sizeof raw);
    connection->unacknowledged_bytes = 0;
}

/* Returns -1 when the frame ends the stream. */
static int take_frame(struct connection *connection, const unsigned char *frame, size_t length, struct heard *heard)
{
    int type = frame[3], flags = frame[4];
    uint32_t stream = number_at(frame + 5) & 0x7fffffff;
    const unsigned char *payload = frame + FRAME_HEAD;
    switch (type) {
    case FRAME_DATA:
        hear_messages(payload, length, heard);
        connection->unacknowledged_bytes += length;
        if (connection->unacknowledged_bytes > GIVE_BACK)
            give_back(connection);
        return flags & FLAG_END_STREAM ? -1 : 0;
    case FRAME_HEADERS:
        return flags & FLAG_END_STREAM ? -1 : 0;
    case FRAME_SETTINGS:
        if (!(flags & FLAG_ACK))
            take_settings(connection, payload, length);
        return 0;
    case FRAME_PING:
        if (!(flags & FLAG_ACK))
            append_frame(connection, FRAME_PING, FLAG_ACK, 0, payload, length);
        return 0;
    case FRAME_WINDOW_UPDATE:
        if (stream == 0)
            connection->connection_window += number_at(payload) & 0x7fffffff;
        else
            connection->stream_window += number_at(payload) & 0x7fffffff;
        return 0;
    case FRAME_RST_STREAM:
    case FRAME_GOAWAY:
        return -1;
    default:
        return 0;
    }
}

/* Bytes read, 0 when there are none now, -1 at the end. */
static ssize_t receive(struct connection *connection, unsigned char *to, size_t room)
{
    if (connection->tls == NULL) {
        ssize_t count = recv(connection->fd, to, room, 0);
        if (count > 0)
            return count;
        return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
    }
    /* SSL_read takes an int, and our rooms are small. */
    int count = SSL_read(connection->tls, to, (int)room);
    if (count > 0)
        return count;
    int why = SSL_get_error(connection->tls, count);
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

static ssize_t transmit(struct connection *connection, const unsigned char *from, size_t length)
{
    if (connection->tls == NULL) {
        ssize_t count = send(connection->fd, from, length, MSG_NOSIGNAL);
        if (count >= 0)
            return count;
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOTCONN ? 0 : -1;
    }
    int count = SSL_write(connection->tls, from, length > MOST_OF_A_FRAME ? MOST_OF_A_FRAME : (int)length);
    if (count > 0)
        return count;
    int why = SSL_get_error(connection->tls, count);
    return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

static int read_all(struct connection *connection, struct heard *heard)
{
    static unsigned char room[65536]; /* one thread, and what is left over moves to the connection's own buffer */
    for (;;) {
        ssize_t count = receive(connection, room, sizeof room);
        if (count <= 0)
            return (int)count;
        append(&connection->in, room, (size_t)count);
        struct buffer *in = &connection->in;
        while (in->end - in->begin >= FRAME_HEAD) {
            const unsigned char *frame = in->bytes + in->begin;
            size_t length = (size_t)frame[0] << 16 | (size_t)frame[1] << 8 | frame[2];
            if (in->end - in->begin < FRAME_HEAD + length)
                break;
            if (take_frame(connection, frame, length, heard) != 0)
                return -1;
            in->begin += FRAME_HEAD + length;
        }
        drop_if_empty(in);
    }
}

int connection_step(struct connection *connection, struct heard *heard)
{
    if (connection->shaking_hands) {
        int done = SSL_do_handshake(connection->tls);
        if (done != 1) {
            int why = SSL_get_error(connection->tls, done);
            connection->handshake_writes = why == SSL_ERROR_WANT_WRITE;
            return why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE ? 0 : -1;
        }
        connection->shaking_hands = 0;
    }
    if (read_all(connection, heard) != 0)
        return -1;
    release_held(connection);
    struct buffer *out = &connection->out;
    while (out->begin < out->end) {
        ssize_t count = transmit(connection, out->bytes + out->begin, out->end - out->begin);
        if (count < 0)
            return -1;
        if (count == 0)
            break;
        out->begin += (size_t)count;
    }
    drop_if_empty(out);
    return 0;
}

void connection_close(struct connection *connection)
{
    if (connection->tls != NULL)
        SSL_free(connection->tls);
    if (connection->fd >= 0)
        close(connection->fd);
    free(connection->out.bytes);
    free(connection->held.bytes);
    free(connection->in.bytes);
    memset(connection, 0, sizeof *connection);
    connection->fd = -1;
}
