/* Messages of a pipeline as bytes: encodes rows of a libpq result as JSON, and wraps or packs the JSON for a log, a
 * file or a topic.
 *
 * The JSON equals the output of `harvest_lib.pipeline.extended_json.dumps` for a row's data, byte by byte. If a row is
 * malformed, or has a value that `dumps` would not write as text, nothing is encoded here, and Python encodes the
 * rows.
 */
#include "hand_over.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct {
    uint8_t *data;
    size_t size, room;
} buffer_t;

/* Make room for `more` bytes. Return the address at which they may be written, NULL if there is no memory. */
static uint8_t *reserve(buffer_t *buffer, size_t more) {
    if (buffer->room - buffer->size < more) {
        size_t room = buffer->size + more + buffer->room;
        uint8_t *data = realloc(buffer->data, room);
        if (data == NULL)
            return NULL;
        buffer->data = data, buffer->room = room;
    }
    return buffer->data + buffer->size;
}

static int put(buffer_t *buffer, const void *bytes, size_t count) {
    uint8_t *at = reserve(buffer, count);
    if (at == NULL)
        return 0;
    memcpy(at, bytes, count);
    buffer->size += count;
    return 1;
}

#define PUT(buffer, literal) put(buffer, literal, sizeof literal - 1)

/* ---- text as JSON */

/* The character behind the backslash in an escape. Other characters below a blank are written as \u and a number. */
static const char ESCAPES[256] = {['"'] = '"', ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't', ['\f'] = 'f', ['\b'] = 'b'};
enum { BLANK = 0x20, DELETE = 0x7F, NUMBERED = 6 /* bytes of \u and a number */ };

typedef struct {
    const uint8_t *bytes; /* NULL for null */
    size_t count;
} text_t;

/* Return 1 if a text begins with `$`, or has a `$` directly behind a quotation mark. If a row has such a text, `dumps`
 * writes every character of the row beyond ASCII as \u and a number. */
static int is_special(text_t text) {
    const uint8_t *at = text.bytes;
    while (at != NULL && (at = memchr(at, '$', text.count - (size_t)(at - text.bytes))) != NULL) {
        if (at == text.bytes || at[-1] == '"')
            return 1;
        at++;
    }
    return 0;
}

static int is_ascii(text_t text) {
    for (size_t i = 0; i < text.count; i++)
        if (text.bytes[i] >= DELETE)
            return 0;
    return 1;
}

static uint8_t *put_number(uint8_t *at, uint32_t unit) {
    static const char DIGITS[] = "0123456789abcdef";
    *at++ = '\\', *at++ = 'u';
    for (int shift = 12; shift >= 0; shift -= 4)
        *at++ = (uint8_t)DIGITS[unit >> shift & 0xF];
    return at;
}

/* Write a character beyond ASCII, whose first byte is at `*from`, as one \u with a number, or as two (surrogates). */
static uint8_t *put_beyond_ascii(uint8_t *at, const uint8_t **from, const uint8_t *end) {
    uint32_t character = *(*from)++;
    int more = character >= 0xF0 ? 3 : character >= 0xE0 ? 2 : 1;
    character &= 0x3Fu >> more;
    for (; more > 0 && *from < end; more--)
        character = character << 6 | (*(*from)++ & 0x3F);
    if (character >= 0x10000) {
        character -= 0x10000;
        at = put_number(at, 0xD800 | character >> 10);
        character = 0xDC00 | (character & 0x3FF);
    }
    return put_number(at, character);
}

static size_t quoted_size(text_t text) {
    size_t size = 2 + text.count;
    for (size_t i = 0; i < text.count; i++)
        size += ESCAPES[text.bytes[i]] ? 1 : text.bytes[i] < BLANK ? NUMBERED - 1 : 0;
    return size;
}

/* Add a text in quotation marks, or null. */
static int put_text(buffer_t *buffer, text_t text, int by_numbers) {
    if (text.bytes == NULL)
        return PUT(buffer, "null");
    size_t size = by_numbers ? 2 + NUMBERED * text.count : quoted_size(text);
    const uint8_t *from = text.bytes, *end = from + text.count;
    uint8_t *at = reserve(buffer, size);
    if (at == NULL)
        return 0;
    *at++ = '"';
    if (!by_numbers && size == 2 + text.count) {
        memcpy(at, from, text.count);
        at += text.count, from = end;
    }
    while (from < end) {
        uint8_t byte = *from;
        if (by_numbers && byte > DELETE) {
            at = put_beyond_ascii(at, &from, end);
            continue;
        }
        if (ESCAPES[byte])
            *at++ = '\\', *at++ = (uint8_t)ESCAPES[byte];
        else if (byte < BLANK || (by_numbers && byte == DELETE))
            at = put_number(at, byte);
        else
            *at++ = byte;
        from++;
    }
    *at++ = '"';
    buffer->size = (size_t)(at - buffer->data);
    return 1;
}

/* ---- rows as JSON */

typedef struct {
    uint8_t *data; /* to be freed by `harvest_free` */
    int64_t size;
    int32_t topics;
    int32_t has_keys; /* true if each key is text, in the same JSON as it has outside of a row */
    int32_t first_of[MOST_TOPICS]; /* a row of each topic */
} encoded_t;

/* Indexes of a row's spans: where its id and its key begin and end in the JSON. */
enum { ID_BEGIN, ID_END, KEY_BEGIN, KEY_END, SPANS };

enum { LARGEST = 1 << 30 }; /* bytes of a row: lengths in an entry have 32 bits; Python refuses larger rows */

static text_t text_of(const PGresult *result, int row, int column) {
    text_t text = {NULL, 0};
    if (!fn.getisnull(result, row, column)) {
        text.bytes = (const uint8_t *)fn.getvalue(result, row, column);
        text.count = (size_t)fn.getlength(result, row, column);
    }
    return text;
}

/* The remaining headers of a row: names and values. */
typedef struct {
    texts_t names, values;
} headers_t;

static int open_headers(const PGresult *result, int first, int row, headers_t *headers) {
    return open_texts(result, row, first + HEADER_NAMES, &headers->names) &&
           open_texts(result, row, first + HEADER_VALUES, &headers->values);
}

/* Take the next header. Return 1, or 0 if there is none, or -1 if an array is malformed. */
static int next_header(headers_t *headers, text_t *name, text_t *value) {
    const char *bytes;
    int32_t length;
    if (headers->names.left == 0 || headers->values.left == 0)
        return 0;
    if (!next_text(&headers->names, &bytes, &length))
        return -1;
    name->bytes = (const uint8_t *)bytes, name->count = (size_t)length;
    if (!next_text(&headers->values, &bytes, &length))
        return -1;
    value->bytes = (const uint8_t *)bytes, value->count = (size_t)length;
    return 1;
}

static int put_headers(buffer_t *buffer, headers_t headers, int by_numbers) {
    text_t name, value;
    int is_first = 1;
    while (next_header(&headers, &name, &value) == 1) {
        if (!(is_first ? PUT(buffer, "[") : PUT(buffer, ",[")) || !put_text(buffer, name, by_numbers) ||
            !PUT(buffer, ",") || !put_text(buffer, value, by_numbers) || !PUT(buffer, "]"))
            return 0;
        is_first = 0;
    }
    return 1;
}

/* Add a row, and note its spans. Return 0 if Python has to encode the row, or if there is no memory. */
static int put_row(buffer_t *buffer, const PGresult *result, int first, int row, int64_t *spans, encoded_t *into) {
    headers_t headers, looked_at;
    text_t name, content, key = text_of(result, row, first + KEY), value = text_of(result, row, first + VALUE);
    char id[24];
    if (fn.getisnull(result, row, first + ID) || !open_headers(result, first, row, &headers))
        return 0;
    int is_odd_key = is_special(key), by_numbers = is_odd_key || is_special(value), found;
    for (looked_at = headers; (found = next_header(&looked_at, &name, &content)) == 1;)
        by_numbers = by_numbers || is_special(name) || is_special(content);
    if (found < 0)
        return 0;
    if (key.bytes == NULL || is_odd_key || (by_numbers && !is_ascii(key)))
        into->has_keys = 0;
    int digits = snprintf(id, sizeof id, "%" PRId64, read_64((const uint8_t *)fn.getvalue(result, row, first + ID)));
    if (!PUT(buffer, "{\"id\":"))
        return 0;
    spans[ID_BEGIN] = (int64_t)buffer->size, spans[ID_END] = spans[ID_BEGIN] + digits;
    if (!put(buffer, id, (size_t)digits) || !PUT(buffer, ",\"key\":"))
        return 0;
    spans[KEY_BEGIN] = (int64_t)buffer->size;
    if (!put_text(buffer, key, by_numbers))
        return 0;
    spans[KEY_END] = (int64_t)buffer->size;
    return PUT(buffer, ",\"value\":") && put_text(buffer, value, by_numbers) && PUT(buffer, ",\"headers\":[") &&
           put_headers(buffer, headers, by_numbers) && PUT(buffer, "]}");
}

/* Return the number of a row's topic; -1 if there are too many topics, or if the row has no topic. */
static int topic_of(const PGresult *result, int row, int column, int last, encoded_t *into) {
    const char *topic = fn.getvalue(result, row, column);
    if (fn.getisnull(result, row, column))
        return -1;
    if (into->topics > 0 && strcmp(fn.getvalue(result, into->first_of[last], column), topic) == 0)
        return last;
    for (int i = 0; i < into->topics; i++)
        if (strcmp(fn.getvalue(result, into->first_of[i], column), topic) == 0)
            return i;
    if (into->topics == MOST_TOPICS)
        return -1;
    into->first_of[into->topics] = row;
    return into->topics++;
}

/* Encode the rows `from` to before `to`, and append `tail` unchanged. `bounds` gets 0, then the end of each row, then
 * the end of the tail; `topics` the number of each row's topic; `spans` the spans of each row. Return 0 if Python has
 * to encode the rows. */
int harvest_encode(const PGresult *result, int first, int from, int to, const void *tail, int64_t tail_bytes,
                   int64_t *bounds, uint8_t *topics, int64_t *spans, encoded_t *into) {
    buffer_t buffer = {NULL, 0, 0};
    int topic = 0;
    memset(into, 0, sizeof *into);
    into->has_keys = 1;
    *bounds++ = 0;
    for (int row = from; row < to; row++, spans += SPANS) {
        topic = topic_of(result, row, first + TOPIC, topic, into);
        size_t before = buffer.size;
        if (topic < 0 || !put_row(&buffer, result, first, row, spans, into) || buffer.size - before > LARGEST) {
            free(buffer.data);
            return 0;
        }
        *topics++ = (uint8_t)topic;
        *bounds++ = (int64_t)buffer.size;
    }
    if (!put(&buffer, tail, (size_t)tail_bytes)) {
        free(buffer.data);
        return 0;
    }
    *bounds = (int64_t)buffer.size;
    into->data = buffer.data, into->size = (int64_t)buffer.size;
    return 1;
}

void harvest_free(void *data) { free(data); }

/* ---- wrapped messages */

typedef struct {
    const void *before, *after; /* `before` is NULL: messages of this kind are left out */
    int64_t before_bytes, after_bytes;
    int32_t field; /* the part of the message between `before` and `after` */
} wrapping_t;

enum { WHOLE = -1, NOTHING = -2 };

/* Write each of the messages `from` to before `to` in the wrapping of its kind. `into_bounds` gets 0, then the end of
 * each wrapped message; `into_kinds` its kind. Return the number of wrapped messages. */
int harvest_wrap(const uint8_t *data, const int64_t *bounds, const int64_t *spans, const uint8_t *kinds, int from, int to,
                 const wrapping_t *wrappings, uint8_t *into, int64_t *into_bounds, int32_t *into_kinds) {
    uint8_t *at = into;
    int count = 0;
    into_bounds[0] = 0;
    for (int i = from; i < to; i++) {
        const wrapping_t *wrapping = &wrappings[kinds[i]];
        if (wrapping->before == NULL)
            continue;
        memcpy(at, wrapping->before, (size_t)wrapping->before_bytes);
        at += wrapping->before_bytes;
        if (wrapping->field != NOTHING) {
            const int64_t *span = wrapping->field == WHOLE ? bounds + i : spans + (int64_t)i * SPANS + wrapping->field;
            memcpy(at, data + span[0], (size_t)(span[1] - span[0]));
            at += span[1] - span[0];
        }
        memcpy(at, wrapping->after, (size_t)wrapping->after_bytes);
        at += wrapping->after_bytes;
        into_kinds[count] = kinds[i];
        into_bounds[++count] = at - into;
    }
    return count;
}

/* ---- entries of a commit log, as `harvest_lib.pipeline.commit_log.entry` describes them */

typedef struct {
    const void *key;
    uint64_t timestamp;
    uint32_t key_bytes;
    uint8_t mode;
} head_t;

enum { MODE_BYTES = 1, LENGTH_BYTES = 4, NUMBER_BYTES = 8, FIXED_BYTES = 2 * NUMBER_BYTES + MODE_BYTES + 3 * LENGTH_BYTES };

static uint8_t *put_big_endian(uint8_t *at, uint64_t number, int bytes) {
    for (int i = bytes - 1; i >= 0; i--)
        *at++ = (uint8_t)(number >> 8 * i);
    return at;
}

/* Pack the messages from `from` on as entries with offsets from `offset` on: as many before `to` as fit into `room`
 * bytes. Return their number; `written` gets their bytes. */
int harvest_pack(const uint8_t *data, const int64_t *bounds, const uint8_t *kinds, const head_t *heads, int from, int to,
                 uint64_t offset, uint8_t *into, int64_t room, int64_t *written) {
    uint8_t *at = into;
    int i = from;
    for (; i < to; i++) {
        const head_t *head = &heads[kinds[i]];
        size_t bytes = (size_t)(bounds[i + 1] - bounds[i]);
        if ((size_t)(into + room - at) < FIXED_BYTES + head->key_bytes + bytes)
            break;
        at = put_big_endian(at, offset++, NUMBER_BYTES);
        at = put_big_endian(at, 2 * LENGTH_BYTES + head->key_bytes + bytes, LENGTH_BYTES);
        at = put_big_endian(at, head->timestamp, NUMBER_BYTES);
        at = put_big_endian(at, head->mode, MODE_BYTES);
        at = put_big_endian(at, head->key_bytes, LENGTH_BYTES);
        memcpy(at, head->key, head->key_bytes);
        at = put_big_endian(at + head->key_bytes, bytes, LENGTH_BYTES);
        memcpy(at, data + bounds[i], bytes);
        at += bytes;
    }
    *written = at - into;
    return i - from;
}
