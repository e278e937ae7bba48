/* Common parts of the library's files: the functions of librdkafka and libpq, and helpers that read rows. */
#ifndef HARVEST_HAND_OVER_H
#define HARVEST_HAND_OVER_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct pg_result PGresult;

/* rd_kafka_message_t, which is the same in all versions of librdkafka's ABI 1. */
typedef struct {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *opaque;
} message_t;

typedef int on_new_t(rd_kafka_t *, const rd_kafka_conf_t *, void *, char *, size_t);
typedef int on_acknowledgement_t(rd_kafka_t *, message_t *, void *);

struct functions {
    int (*ntuples)(const PGresult *);
    char *(*getvalue)(const PGresult *, int, int);
    int (*getlength)(const PGresult *, int, int);
    int (*getisnull)(const PGresult *, int, int);
    int (*producev)(rd_kafka_t *, ...);
    rd_kafka_headers_t *(*headers_new)(size_t);
    int (*header_add)(rd_kafka_headers_t *, const char *, ssize_t, const void *, ssize_t);
    void (*headers_destroy)(rd_kafka_headers_t *);
    const char *(*topic_name)(const rd_kafka_topic_t *);
    int (*add_on_new)(rd_kafka_conf_t *, const char *, on_new_t *, void *);
    int (*add_on_acknowledgement)(rd_kafka_t *, const char *, on_acknowledgement_t *, void *);
};

extern struct functions fn __attribute__((visibility("hidden")));

/* The columns of a row, in order. */
enum { ID, TOPIC, KEY, VALUE, HEADER_NAMES, HEADER_VALUES };
enum { MOST_TOPICS = 64 };

static inline int32_t read_32(const uint8_t *p) {
    return (int32_t)((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
}

static inline int64_t read_64(const uint8_t *p) { return (int64_t)((uint64_t)(uint32_t)read_32(p) << 32 | (uint32_t)read_32(p + 4)); }

/* The remaining elements of an array of texts, in Postgres's binary format. */
typedef struct {
    const uint8_t *at, *end;
    int left;
} texts_t;

/* Begin to read a column. Return 1 if it is an empty array or an array of one dimension, else 0. */
static inline int open_texts(const PGresult *result, int row, int column, texts_t *texts) {
    if (fn.getisnull(result, row, column))
        return 0;
    const uint8_t *at = (const uint8_t *)fn.getvalue(result, row, column);
    int length = fn.getlength(result, row, column);
    texts->at = texts->end = at + length, texts->left = 0;
    if (length < 12)
        return 0;
    int dimensions = read_32(at);
    if (dimensions == 0)
        return 1;
    if (dimensions != 1 || length < 20)
        return 0;
    texts->left = read_32(at + 12);
    texts->at = at + 20;
    return texts->left >= 0;
}

/* Take the next element. Return 1 with its bytes, -1 if it is null, 0 if the array is malformed. */
static inline int next_text(texts_t *texts, const char **bytes, int32_t *length) {
    if (texts->end - texts->at < 4)
        return 0;
    *length = read_32(texts->at);
    texts->at += 4, texts->left--;
    if (*length < 0) {
        *bytes = NULL, *length = 0;
        return -1;
    }
    if (texts->end - texts->at < *length)
        return 0;
    *bytes = (const char *)texts->at;
    texts->at += *length;
    return 1;
}

#endif
