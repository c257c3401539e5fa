/* One connection with one gRPC stream: as much of HTTP/2 as that needs, over TCP or TLS, without blocking. */
#ifndef REPORT_LOAD_CONNECTION_H
#define REPORT_LOAD_CONNECTION_H

#include <openssl/ssl.h>
#include <stddef.h>
#include <stdint.h>

/* What came from the server since the last look. */
struct heard {
    unsigned welcomes, acknowledgements, resends, refusals;
    double spread_seconds; /* of the last welcome or acknowledgement; negative when there was none */
};

struct buffer {
    unsigned char *bytes;
    size_t begin, end, room;
};

struct connection {
    int fd;
    SSL *tls;
    int shaking_hands, handshake_writes; /* the handshake goes on, and waits for the socket to take more */
    struct buffer out;  /* frames that the socket has not taken */
    struct buffer held; /* message bytes that the server's windows do not allow yet */
    struct buffer in;   /* the beginning of a frame */
    int64_t stream_window, connection_window, initial_window;
    uint64_t unacknowledged_bytes; /* read and not yet given back to the server's windows */
};

/* Begin to connect. tls: NULL for none. Returns 0, or -1 when the system refuses. */
int connection_open(struct connection *connection, const char *host, int port, SSL *tls);

/* Send one message of gRPC. */
void connection_send(struct connection *connection, const unsigned char *message, uint32_t length);

/* Read and write what can be. Returns 0, or -1 when the connection or its stream has ended. */
int connection_step(struct connection *connection, struct heard *heard);

/* Whether it waits for the socket to take more. */
int connection_wants_to_write(const struct connection *connection);

void connection_close(struct connection *connection);

#endif
