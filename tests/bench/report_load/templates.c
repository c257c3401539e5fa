#include "templates.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE_DIGITS 5

static void need(int held, const char *what)
{
    if (!held) {
        fprintf(stderr, "report_load: %s\n", what);
        exit(1);
    }
}

static uint32_t read_number(FILE *file)
{
    unsigned char raw[4];
    need(fread(raw, 1, sizeof raw, file) == sizeof raw, "the templates end too early");
    /* Each byte is widened before it is shifted, so that no bit is lost. */
    return raw[0] | (uint32_t)raw[1] << 8 | (uint32_t)raw[2] << 16 | (uint32_t)raw[3] << 24;
}

void templates_read(const char *path, struct templates *templates)
{
    FILE *file = fopen(path, "rb");
    need(file != NULL, "can't open the templates");
    for (int kind = 0; kind < MESSAGE_KINDS; kind++) {
        struct message_template *made = &templates->messages[kind];
        made->length = read_number(file);
        made->bytes = malloc(made->length);
        need(made->bytes != NULL, "no memory");
        need(fread(made->bytes, 1, made->length, file) == made->length, "the templates end too early");
        for (int hole = 0; hole < HOLE_KINDS; hole++) {
            struct holes *holes = &made->holes[hole];
            holes->count = read_number(file);
            holes->at = calloc(holes->count + 1, sizeof *holes->at);
            need(holes->at != NULL, "no memory");
            for (uint32_t index = 0; index < holes->count; index++) {
                holes->at[index] = read_number(file);
                need(holes->at[index] < made->length, "a hole lies outside its message");
            }
        }
    }
    fclose(file);
}

static void put_varint(const struct holes *holes, uint32_t value, unsigned char *to)
{
    for (uint32_t index = 0; index < holes->count; index++) {
        unsigned char *at = to + holes->at[index];
        /* Seven bits a byte, the lowest first: the casts drop what the next byte carries. */
        at[0] = (unsigned char)(value | 0x80);
        at[1] = (unsigned char)(value >> 7 | 0x80);
        at[2] = (unsigned char)(value >> 14 & 0x7f);
    }
}

void template_fill(const struct message_template *template, unsigned node, uint32_t base, uint32_t revision,
                   double reading, unsigned char *to)
{
    char digits[NODE_DIGITS + 1];
    memcpy(to, template->bytes, template->length);
    snprintf(digits, sizeof digits, "%05u", node % 100000u);
    for (uint32_t index = 0; index < template->holes[HOLE_NODE].count; index++)
        memcpy(to + template->holes[HOLE_NODE].at[index], digits, NODE_DIGITS);
    put_varint(&template->holes[HOLE_BASE], base, to);
    put_varint(&template->holes[HOLE_REVISION], revision, to);
    for (uint32_t index = 0; index < template->holes[HOLE_READING].count; index++)
        memcpy(to + template->holes[HOLE_READING].at[index], &reading, sizeof reading);
}
