/* Messages with holes: what all nodes say alike, as the Python side serialised it, and where each node's own goes. */
#ifndef REPORT_LOAD_TEMPLATES_H
#define REPORT_LOAD_TEMPLATES_H

#include <stddef.h>
#include <stdint.h>

enum hole { HOLE_NODE, HOLE_BASE, HOLE_REVISION, HOLE_READING, HOLE_KINDS };
enum message { MESSAGE_HELLO, MESSAGE_SNAPSHOT, MESSAGE_DELTA, MESSAGE_KINDS };

struct holes {
    uint32_t count;
    uint32_t *at;
};

struct message_template {
    uint32_t length;
    unsigned char *bytes;
    struct holes holes[HOLE_KINDS];
};

struct templates {
    struct message_template messages[MESSAGE_KINDS];
};

/* Read a file of templates; ends the program with a message when it can't be used. */
void templates_read(const char *path, struct templates *templates);

/* Write the message of a node to `to`, which has room for its length. Revisions must be numbers of three bytes as a
 * varint: 16,384 to 2,097,151. */
void template_fill(const struct message_template *template, unsigned node, uint32_t base, uint32_t revision,
                   double reading, unsigned char *to);

#endif
