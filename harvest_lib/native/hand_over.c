/* Hands rows of a libpq result to a librdkafka producer, without making a Python object of a row. It also hands over
 * many records in one call, if Python has their bytes in one block of memory.
 *
 * The code does not use Python's API. `harvest_lib.native.library` loads the library, and passes in the functions of
 * the very libpq and librdkafka that psycopg and confluent-kafka have loaded; the library is linked to neither.
 *
 * librdkafka loads the library too, as a plugin (`plugin.library.paths`): so it gets a producer's handle and its
 * delivery reports. Records that Python hands over have an opaque, and records from here have none: so each is
 * reported once.
 */
#include "hand_over.h"

#include <pthread.h>
#include <time.h>

struct functions fn;

enum { FUNCTIONS = sizeof fn / sizeof(void *) };
enum { VTYPE_END, VTYPE_TOPIC, VTYPE_VALUE = 4, VTYPE_KEY, VTYPE_MSGFLAGS = 7, VTYPE_TIMESTAMP, VTYPE_HEADERS = 10 };
enum { MSG_F_COPY = 2 };
enum { TIMED_OUT = -192 }; /* RD_KAFKA_RESP_ERR__MSG_TIMED_OUT */
enum { UNCONFIRMED = -149 }; /* RD_KAFKA_RESP_ERR__INCONSISTENT, which librdkafka itself reports for no record */
enum { STAMP = 17, MESSAGE_ID = 16 };

static const char NAME[] = "harvest";
static const char STAMP_HEADER[] = "harvest", ID_HEADER[] = "message-id", TRACE_HEADER[] = "traceparent";

/* The number of the interface for Python. It changes with the functions: Python does not use a library of another
 * build. */
int harvest_interface(void) { return 5; }

int harvest_bind(void *const *functions, int count) {
    if (count != FUNCTIONS)
        return 0;
    memcpy(&fn, functions, sizeof fn);
    return 1;
}

/* ---- a sender: a producer, and the reports of records that were handed over here */

enum { TOPIC_BYTES = 250, MOST_FAILURES = 64, MOST_KEY_BYTES = 1 << 23 };

typedef struct {
    int32_t number; /* an error or a partition */
    char topic[TOPIC_BYTES];
} of_topic_t;

typedef struct {
    rd_kafka_t *rk;
    pthread_mutex_t mutex;
    int holders; /* number of references: of the producer until it is closed, and of Python */
    int failed;
    of_topic_t failures[MOST_FAILURES]; /* each pair of error and topic once */
    int tracks;                         /* true if places are to be noted */
    rd_kafka_topic_t *last_topic;
    int32_t last_partition;
    int placed, room;
    of_topic_t *places; /* topics and partitions in which records arrived */
    int lost_place;     /* true if there was no memory for a place */
    int notes_keys;     /* true if the keys of failed records are to be noted */
    char *keys;         /* keys of failed records, each followed by a NUL */
    size_t key_bytes, key_room;
    int lost_key; /* true if there was no memory for a key, or a failed record had no key */
} sender_t;

static __thread sender_t *newest;

static const char *name_of(const rd_kafka_topic_t *rkt) { return rkt ? fn.topic_name(rkt) : ""; }

static int is_noted(const of_topic_t *noted, int count, int32_t number, const char *topic) {
    for (int i = 0; i < count; i++)
        if (noted[i].number == number && strcmp(noted[i].topic, topic) == 0)
            return 1;
    return 0;
}

static void note(of_topic_t *into, int32_t number, const char *topic) {
    into->number = number;
    strncpy(into->topic, topic, TOPIC_BYTES - 1);
    into->topic[TOPIC_BYTES - 1] = 0;
}

static void note_failure(sender_t *sender, const message_t *message, int error) {
    const char *topic = name_of(message->rkt);
    if (is_noted(sender->failures, sender->failed, error, topic))
        return;
    if (sender->failed < MOST_FAILURES)
        note(&sender->failures[sender->failed++], error, topic);
    else if (error == TIMED_OUT) /* noted in any case: no other error means that a record may still arrive */
        note(&sender->failures[MOST_FAILURES - 1], error, topic);
    else if (error == UNCONFIRMED)
        note(&sender->failures[MOST_FAILURES - 2], error, topic);
}

static void note_place(sender_t *sender, const message_t *message) {
    if (message->rkt == sender->last_topic && message->partition == sender->last_partition)
        return;
    const char *topic = name_of(message->rkt);
    sender->last_topic = message->rkt, sender->last_partition = message->partition;
    if (is_noted(sender->places, sender->placed, message->partition, topic))
        return;
    if (sender->placed == sender->room) {
        int room = sender->room ? 2 * sender->room : 64;
        of_topic_t *places = realloc(sender->places, (size_t)room * sizeof *places);
        if (places == NULL) {
            sender->lost_place = 1;
            return;
        }
        sender->places = places, sender->room = room;
    }
    note(&sender->places[sender->placed++], message->partition, topic);
}

static void note_key(sender_t *sender, const message_t *message) {
    size_t size = sender->key_bytes + message->key_len + 1;
    if (size > sender->key_room && size <= MOST_KEY_BYTES) {
        size_t room = 2 * size < MOST_KEY_BYTES ? 2 * size : MOST_KEY_BYTES;
        char *keys = realloc(sender->keys, room);
        if (keys != NULL)
            sender->keys = keys, sender->key_room = room;
    }
    if (size > sender->key_room || message->key == NULL) {
        sender->lost_key = 1;
        return;
    }
    if (message->key_len > 0)
        memcpy(sender->keys + sender->key_bytes, message->key, message->key_len);
    sender->keys[size - 1] = 0;
    sender->key_bytes = size;
}

/* librdkafka's threads call this before a record stops being outstanding. A record without an offset was taken for
 * delivered because a later record was delivered: no broker has confirmed it. librdkafka does not report that to
 * Python. */
static int on_acknowledgement(rd_kafka_t *rk, message_t *message, void *opaque) {
    sender_t *sender = opaque;
    int error = message->err ? message->err : message->offset < 0 ? UNCONFIRMED : 0;
    int tracks = __atomic_load_n(&sender->tracks, __ATOMIC_RELAXED);
    (void)rk;
    if (error != UNCONFIRMED && (message->opaque != NULL || (error == 0 && !tracks)))
        return 0;
    pthread_mutex_lock(&sender->mutex);
    if (error && __atomic_load_n(&sender->notes_keys, __ATOMIC_RELAXED))
        note_key(sender, message);
    if (error)
        note_failure(sender, message, error);
    else
        note_place(sender, message);
    pthread_mutex_unlock(&sender->mutex);
    return 0;
}

static int on_new(rd_kafka_t *rk, const rd_kafka_conf_t *conf, void *opaque, char *text, size_t size) {
    (void)conf, (void)opaque, (void)text, (void)size;
    sender_t *sender = calloc(1, sizeof *sender);
    if (sender == NULL)
        return 0; /* the maker of the producer finds no sender, and Python hands rows over */
    pthread_mutex_init(&sender->mutex, NULL);
    sender->rk = rk;
    sender->holders = 2;
    if (fn.add_on_acknowledgement(rk, NAME, on_acknowledgement, sender) == 0)
        newest = sender;
    else {
        pthread_mutex_destroy(&sender->mutex);
        free(sender);
    }
    return 0;
}

/* The function of a plugin that librdkafka calls. */
int conf_init(rd_kafka_conf_t *conf, void **opaque, char *text, size_t size) {
    (void)opaque, (void)text, (void)size;
    return fn.add_on_new ? fn.add_on_new(conf, NAME, on_new, NULL) : 0;
}

/* Return the sender of the producer that this thread has made last, or NULL. The caller has to release two references:
 * one after its own use, the other after the producer was closed, when librdkafka calls nothing here any more. */
sender_t *harvest_take_newest(void) {
    sender_t *sender = newest;
    newest = NULL;
    return sender;
}

void harvest_let_go(sender_t *sender) {
    /* The mutex is not used: in a forked process, a thread that does not exist there may hold it. */
    if (__atomic_sub_fetch(&sender->holders, 1, __ATOMIC_ACQ_REL) == 0) {
        pthread_mutex_destroy(&sender->mutex);
        free(sender->places);
        free(sender->keys);
        free(sender);
    }
}

void harvest_track(sender_t *sender) { __atomic_store_n(&sender->tracks, 1, __ATOMIC_RELAXED); }

/* Copy the failures since the last call, in order of time, and forget them. Return their number. */
int harvest_failures(sender_t *sender, of_topic_t *into) {
    pthread_mutex_lock(&sender->mutex);
    int count = sender->failed;
    memcpy(into, sender->failures, (size_t)count * sizeof *into);
    sender->failed = 0;
    pthread_mutex_unlock(&sender->mutex);
    return count;
}

void harvest_note_keys(sender_t *sender) { __atomic_store_n(&sender->notes_keys, 1, __ATOMIC_RELAXED); }

/* Return the keys of records that failed since the last call, each followed by a NUL, in memory that the caller frees
 * by `harvest_free`. The result is the number of bytes, or -1 if a key was lost. */
int harvest_failed_keys(sender_t *sender, char **keys) {
    pthread_mutex_lock(&sender->mutex);
    int count = sender->lost_key ? -1 : (int)sender->key_bytes;
    *keys = sender->keys;
    sender->keys = NULL;
    sender->key_bytes = sender->key_room = 0;
    sender->lost_key = 0;
    pthread_mutex_unlock(&sender->mutex);
    return count;
}

/* Copy up to `most` places, and forget them. Return their number, or -1 if a place was lost. */
int harvest_places(sender_t *sender, of_topic_t *into, int most) {
    pthread_mutex_lock(&sender->mutex);
    int count = sender->placed < most ? sender->placed : most;
    if (count > 0)
        memcpy(into, sender->places + sender->placed - count, (size_t)count * sizeof *into);
    sender->placed -= count;
    sender->last_topic = NULL;
    int lost = sender->lost_place;
    pthread_mutex_unlock(&sender->mutex);
    return lost ? -1 : count;
}

/* ---- rows */

static int is_named(const char *bytes, int32_t length, const char *name) {
    return (size_t)length == strlen(name) && memcmp(bytes, name, (size_t)length) == 0;
}

/* The functions below take the rows `from` to before `to` of the result, or if `picked` is not NULL, the rows whose
 * numbers are the elements `from` to before `to` of `picked`. */
static inline int row_at(const int32_t *picked, int place) { return picked != NULL ? picked[place] : place; }

typedef struct {
    int64_t bytes, largest; /* bytes of key, value and headers: of all rows, and of the largest row */
    int32_t plain; /* true if no row needs an individual check */
    int32_t topics;
    int32_t first_of[MOST_TOPICS]; /* a row of each topic */
} summary_t;

static int add_topic(const PGresult *result, int row, int column, summary_t *sum) {
    const char *topic = fn.getvalue(result, row, column);
    for (int i = sum->topics; i-- > 0;)
        if (strcmp(fn.getvalue(result, sum->first_of[i], column), topic) == 0)
            return 1;
    if (sum->topics == MOST_TOPICS)
        return 0;
    sum->first_of[sum->topics++] = row;
    return 1;
}

static int add_headers(const PGresult *result, int row, int first, summary_t *sum) {
    texts_t names, values;
    const char *bytes;
    int32_t length;
    if (!open_texts(result, row, first + HEADER_NAMES, &names) || !open_texts(result, row, first + HEADER_VALUES, &values))
        return 0;
    if (names.left != values.left)
        return 0;
    while (names.left > 0) {
        if (next_text(&names, &bytes, &length) != 1)
            return 0;
        sum->bytes += length;
        if (is_named(bytes, length, STAMP_HEADER) || is_named(bytes, length, ID_HEADER))
            return 0;
        if (!next_text(&values, &bytes, &length))
            return 0;
        sum->bytes += length;
    }
    return 1;
}

/* Summarize rows. `first` is the column of the id; the other columns of a `Row` follow it. */
void harvest_summarize(const PGresult *result, int first, const int32_t *picked, int from, int to, summary_t *sum) {
    memset(sum, 0, sizeof *sum);
    sum->plain = 1;
    for (int place = from; place < to; place++) {
        int row = row_at(picked, place);
        int nulls = fn.getisnull(result, row, first + ID) || fn.getisnull(result, row, first + TOPIC) ||
                    fn.getisnull(result, row, first + KEY);
        int64_t before = sum->bytes;
        sum->bytes += fn.getlength(result, row, first + VALUE) + fn.getlength(result, row, first + KEY);
        if (nulls || !add_headers(result, row, first, sum) || !add_topic(result, row, first + TOPIC, sum))
            sum->plain = 0;
        if (sum->bytes - before > sum->largest)
            sum->largest = sum->bytes - before;
    }
}

int64_t harvest_id(const PGresult *result, int first, int row) {
    return read_64((const uint8_t *)fn.getvalue(result, row, first + ID));
}

void harvest_ids(const PGresult *result, int first, const int32_t *picked, int from, int to, int64_t *into) {
    for (int place = from; place < to; place++)
        *into++ = harvest_id(result, first, row_at(picked, place));
}

int harvest_ascends(const PGresult *result, int first, const int32_t *picked, int from, int to) {
    for (int place = from + 1; place < to; place++)
        if (harvest_id(result, first, row_at(picked, place - 1)) >= harvest_id(result, first, row_at(picked, place)))
            return 0;
    return 1;
}

/* Copy the keys, unless `into` is NULL. Each key is followed by a NUL, which no text of Postgres contains. Return the
 * number of bytes. */
int64_t harvest_keys(const PGresult *result, int first, const int32_t *picked, int from, int to, char *into) {
    int64_t bytes = 0;
    for (int place = from; place < to; place++) {
        int row = row_at(picked, place), length = fn.getlength(result, row, first + KEY);
        if (into != NULL) {
            memcpy(into + bytes, fn.getvalue(result, row, first + KEY), (size_t)length);
            into[bytes + length] = 0;
        }
        bytes += length + 1;
    }
    return bytes;
}

enum { TRACEPARENT = 55 };

/* The same as `harvest_lib.telemetry.trace_context.is_sampled`. */
static int is_sampled(const char *value, int32_t bytes) {
    int all = 0;
    if (bytes != TRACEPARENT || memchr("13579bdf", value[TRACEPARENT - 1], 8) == NULL)
        return 0;
    for (int i = 0; i < TRACEPARENT; i++)
        all |= value[i];
    return (all & 0x80) == 0;
}

/* Return the `traceparent` of a row if it names a span that is recorded; else NULL. */
static const char *sampled_traceparent(const PGresult *result, int row, int first) {
    texts_t names, values;
    const char *name, *value;
    int32_t name_bytes, value_bytes;
    if (!open_texts(result, row, first + HEADER_NAMES, &names) || !open_texts(result, row, first + HEADER_VALUES, &values))
        return NULL;
    while (names.left > 0 && values.left > 0) {
        if (!next_text(&names, &name, &name_bytes) || !next_text(&values, &value, &value_bytes))
            return NULL;
        if (is_named(name, name_bytes, TRACE_HEADER))
            return is_sampled(value, value_bytes) ? value : NULL;
    }
    return NULL;
}

/* Copy the first `most` sampled traceparents of rows, without repetitions in a row. Return their number. */
int harvest_traceparents(const PGresult *result, int first, const int32_t *picked, int from, int to, char *into, int most) {
    int count = 0;
    for (int place = from; place < to && count < most; place++) {
        const char *found = sampled_traceparent(result, row_at(picked, place), first);
        if (found == NULL || (count > 0 && memcmp(into - TRACEPARENT, found, TRACEPARENT) == 0))
            continue;
        memcpy(into, found, TRACEPARENT);
        into += TRACEPARENT, count++;
    }
    return count;
}

/* The same as `harvest_lib.sequencing.message_id.pack` with the flag CONTINUE_TXN. */
static void pack_id(uint8_t *into, uint64_t producer, uint64_t clock) {
    uint64_t time = clock >> 4;
    uint32_t parts[4] = {
        (uint32_t)time,
        (uint32_t)(time >> 32 & 0xFFFF) << 16 | (uint32_t)(time >> 48) | 0x1000,
        (uint32_t)(0x8000 | (clock & 0xF) << 10 | 1) << 16 | (uint32_t)(producer >> 32 & 0xFFFF),
        (uint32_t)producer,
    };
    for (int i = 0; i < MESSAGE_ID; i++)
        into[i] = (uint8_t)(parts[i / 4] >> (24 - 8 * (i % 4)));
}

enum { MALFORMED = 1000000 };

static int send_row(sender_t *sender, const PGresult *result, int first, int row, uint8_t *stamp, const uint8_t *id,
                    int64_t timestamp) {
    texts_t names, values;
    const char *name, *content;
    int32_t name_bytes, content_bytes;
    if (!open_texts(result, row, first + HEADER_NAMES, &names) || !open_texts(result, row, first + HEADER_VALUES, &values) ||
        names.left != values.left)
        return MALFORMED;
    rd_kafka_headers_t *headers = fn.headers_new((size_t)names.left + 2);
    if (id != NULL)
        fn.header_add(headers, ID_HEADER, sizeof ID_HEADER - 1, id, MESSAGE_ID);
    while (names.left > 0) {
        if (next_text(&names, &name, &name_bytes) != 1 || !next_text(&values, &content, &content_bytes)) {
            fn.headers_destroy(headers);
            return MALFORMED;
        }
        fn.header_add(headers, name, name_bytes, content, content_bytes);
    }
    const char *record_id = fn.getvalue(result, row, first + ID);
    if (stamp != NULL) {
        memcpy(stamp + STAMP, record_id, 8);
        fn.header_add(headers, STAMP_HEADER, sizeof STAMP_HEADER - 1, stamp, STAMP + 8);
    }
    int no_value = fn.getisnull(result, row, first + VALUE), no_key = fn.getisnull(result, row, first + KEY);
    void *value = no_value ? NULL : fn.getvalue(result, row, first + VALUE);
    void *key = no_key ? NULL : fn.getvalue(result, row, first + KEY);
    size_t value_bytes = (size_t)fn.getlength(result, row, first + VALUE), key_bytes = (size_t)fn.getlength(result, row, first + KEY);
    int error = fn.producev(sender->rk, VTYPE_TOPIC, fn.getvalue(result, row, first + TOPIC), VTYPE_VALUE, value, value_bytes,
                            VTYPE_KEY, key, key_bytes, VTYPE_MSGFLAGS, (int)MSG_F_COPY, VTYPE_TIMESTAMP, timestamp, VTYPE_HEADERS,
                            headers, VTYPE_END);
    if (error)
        fn.headers_destroy(headers);
    return error;
}

enum { LATE = 1000001 };

/* Return the nanoseconds since the machine was started, including time in which it was suspended. */
static int64_t boot_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Hand rows over, up to the first row that is not taken; `error` is that row's error, or 0. Return the number of rows
 * that were handed over. `stamp` is the beginning of the record header, or NULL. With a `producer` each record gets a
 * message id, with clocks from `clock` on. All records get `timestamp`, in milliseconds; 0 leaves it to librdkafka.
 * From the boot time `until` on, rows fail with `LATE`; 0 means no limit. The limit is checked before each row: a
 * process that is frozen past `until` hands over at most one more row. */
int harvest_send(sender_t *sender, const PGresult *result, int first, const int32_t *picked, int from, int to,
                 const uint8_t *stamp, uint64_t producer, uint64_t clock, int64_t timestamp, int64_t until, int *error) {
    uint8_t stamped[STAMP + 8], id[MESSAGE_ID];
    if (stamp != NULL)
        memcpy(stamped, stamp, STAMP);
    *error = 0;
    for (int place = from; place < to; place++) {
        if (producer)
            pack_id(id, producer, clock + (uint64_t)(place - from));
        *error = until && boot_time() >= until ? LATE
                                               : send_row(sender, result, first, row_at(picked, place), stamp ? stamped : NULL,
                                                          producer ? id : NULL, timestamp);
        if (*error)
            return place - from;
    }
    return to - from;
}

/* ---- records whose bytes Python has */

typedef struct {
    const char *topic;
    int64_t timestamp;
} target_t;

/* Hand over the records `from` to before `to`, up to the first record that is not taken; `error` is that record's
 * error, or 0. Return the number of records that were handed over. Key and value of record i lie between the bounds i
 * and i + 1; `kinds` has the index of its target. */
int harvest_produce(sender_t *sender, const uint8_t *keys, const int64_t *key_bounds, const uint8_t *values,
                    const int64_t *value_bounds, const int32_t *kinds, const target_t *targets, int from, int to, int *error) {
    *error = 0;
    for (int i = from; i < to; i++) {
        const target_t *target = &targets[kinds[i]];
        *error = fn.producev(sender->rk, VTYPE_TOPIC, target->topic, VTYPE_VALUE, values + value_bounds[i],
                             (size_t)(value_bounds[i + 1] - value_bounds[i]), VTYPE_KEY, keys + key_bounds[i],
                             (size_t)(key_bounds[i + 1] - key_bounds[i]), VTYPE_MSGFLAGS, (int)MSG_F_COPY, VTYPE_TIMESTAMP,
                             target->timestamp, VTYPE_END);
        if (*error)
            return i - from;
    }
    return to - from;
}
