/* The shortest loops that read the outbox, and that produce its records: what libpq and librdkafka allow. */

#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef struct pg_conn PGconn;
typedef struct pg_result PGresult;
typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;

static struct {
    PGresult *(*exec_prepared)(PGconn *, const char *, int, const char *const *, const int *, const int *, int);
    int (*ntuples)(const PGresult *);
    char *(*getvalue)(const PGresult *, int, int);
    int (*getlength)(const PGresult *, int, int);
    void (*clear)(PGresult *);
    int (*producev)(rd_kafka_t *, ...);
    rd_kafka_headers_t *(*headers_new)(size_t);
    int (*header_add)(rd_kafka_headers_t *, const char *, ssize_t, const void *, ssize_t);
    void (*headers_destroy)(rd_kafka_headers_t *);
    int (*flush)(rd_kafka_t *, int);
} fn;

enum { FUNCTIONS = sizeof fn / sizeof(void *) };
enum { VTYPE_END, VTYPE_TOPIC, VTYPE_VALUE = 4, VTYPE_KEY, VTYPE_MSGFLAGS = 7, VTYPE_HEADERS = 10 };
enum { MSG_F_COPY = 2, QUEUE_FULL = -184 };
enum { ID, TOPIC, KEY, VALUE, COLUMNS = 6 };
enum { STAMP = 25, FLUSH_MILLISECONDS = 60000 };

int floor_bind(void *const *functions, int count) {
    if (count != FUNCTIONS)
        return 0;
    memcpy(&fn, functions, sizeof fn);
    return 1;
}

/* Read all rows by the statement `floor`, which was prepared: those after an id, by pages. Return how many. */
int64_t floor_read(PGconn *connection) {
    int64_t rows = 0;
    char after[8] = {0};
    const char *values[] = {after};
    const int lengths[] = {8}, formats[] = {1};
    for (;;) {
        PGresult *page = fn.exec_prepared(connection, "floor", 1, values, lengths, formats, 1);
        int count = fn.ntuples(page);
        if (count > 0)
            memcpy(after, fn.getvalue(page, count - 1, ID), sizeof after);
        fn.clear(page);
        if (count <= 0)
            return rows;
        rows += count;
    }
}

static int produce(rd_kafka_t *rk, const PGresult *rows, int row) {
    static const char stamp[STAMP] = "stamp";
    rd_kafka_headers_t *headers = fn.headers_new(2);
    fn.header_add(headers, "Seq", 3, "1234567", 7);
    fn.header_add(headers, "harvest", 7, stamp, STAMP);
    int error = fn.producev(rk, VTYPE_TOPIC, fn.getvalue(rows, row, TOPIC), VTYPE_VALUE, fn.getvalue(rows, row, VALUE),
                            (size_t)fn.getlength(rows, row, VALUE), VTYPE_KEY, fn.getvalue(rows, row, KEY),
                            (size_t)fn.getlength(rows, row, KEY), VTYPE_MSGFLAGS, (int)MSG_F_COPY, VTYPE_HEADERS,
                            headers, VTYPE_END);
    if (error)
        fn.headers_destroy(headers);
    return error;
}

/* Produce so many records, the same rows again and again, and wait until all are acknowledged. Return an error or 0. */
int floor_produce(rd_kafka_t *rk, const PGresult *rows, int64_t records) {
    int count = fn.ntuples(rows), error = 0;
    for (int64_t i = 0; i < records && error == 0; i++)
        while ((error = produce(rk, rows, (int)(i % count))) == QUEUE_FULL)
            usleep(1000);
    return error ? error : fn.flush(rk, FLUSH_MILLISECONDS);
}
