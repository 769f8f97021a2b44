/* Compiled loops of hashing.py and table_columns.py, which hold their references in numpy and polars: same bits. */
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

/* What linkers of Python extensions export. The library is no Python module: ctypes loads it. */
void *PyInit__hashing(void) { return 0; }

/* compiled.py refuses a library of another version: one left from older sources. */
int64_t dpfest_hashing_version(void) { return 1; }

/* Arrow's C data interface and C stream interface (Apache Arrow, columnar format, version 1). */
struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

/* A text as Arrow's Utf8View has it: up to 12 bytes in place, more of them in a buffer. */
struct view {
    uint32_t length;
    union {
        uint8_t here[12];
        struct { uint8_t first[4]; uint32_t buffer, offset; } there;
    } at;
};

static inline uint64_t splitmix64(uint64_t value)
{
    uint64_t mixed = value + UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94D049BB133111EB);
    return mixed ^ (mixed >> 31);
}

/* hashing.splitmix64 of each value; in place, too. */
FOR_EACH_PROCESSOR
void dpfest_splitmix64(const uint64_t *values, int64_t count, uint64_t *out)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = splitmix64(values[i]);
}

/* One field of hashing.line_content: whole numbers, then real ones, of which -0 and what is no number count as 0. */
FOR_EACH_PROCESSOR
void dpfest_add_field(const uint64_t *restrict field, int64_t count, uint64_t weight, uint64_t *restrict content)
{
    for (int64_t i = 0; i < count; i++)
        content[i] += field[i] * weight;
}

FOR_EACH_PROCESSOR
void dpfest_add_numbers(const double *restrict field, int64_t count, uint64_t weight, uint64_t *restrict content)
{
    for (int64_t i = 0; i < count; i++) {
        double value = field[i] == field[i] ? field[i] + 0.0 : 0.0;
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        content[i] += bits * weight;
    }
}

/* Whether a text is the decimal of a whole number of 64 bits, as that is written: no sign but -, no zeros in front. */
static inline int whole_number(const uint8_t *text, uint32_t length, uint64_t *number)
{
    int negative = length && text[0] == '-';
    uint32_t digits = length - (uint32_t)negative;
    uint64_t value = 0;
    text += negative;
    if (digits < 1 || digits > 19 || (text[0] == '0' && (digits > 1 || negative)))
        return 0;
    for (uint32_t i = 0; i < digits; i++) {
        uint8_t digit = (uint8_t)(text[i] - '0');
        if (digit > 9)
            return 0;
        value = 10 * value + digit; /* 19 digits are below 2^64 */
    }
    if (value > (uint64_t)INT64_MAX + (uint64_t)negative)
        return 0;
    *number = negative ? -value : value;
    return 1;
}

/* The key of a text that is not empty (table_columns.TABLE_HASH). Words are little-endian, as hosts here are. */
static inline uint64_t key_of(const uint8_t *text, uint32_t length)
{
    uint64_t word, key;
    if (whole_number(text, length, &word))
        return splitmix64(word);
    key = splitmix64(length);
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        key = splitmix64(key ^ word);
    }
    if (length) {
        word = 0;
        memcpy(&word, text, length);
        key = splitmix64(key ^ word);
    }
    return key;
}

/* Write the key of each text of a stream of Utf8View, `blank` for an empty or missing one. Returns how many there are;
 * -1 if the stream is of another type, fails, or has more than `most`. */
int64_t dpfest_keys_of_texts(struct ArrowArrayStream *stream, uint64_t blank, int64_t most, uint64_t *keys)
{
    struct ArrowSchema schema;
    int64_t count = 0;
    if (stream->get_schema(stream, &schema))
        return -1;
    int views = !strcmp(schema.format, "vu");
    schema.release(&schema);
    while (views) {
        struct ArrowArray array;
        if (stream->get_next(stream, &array))
            return -1;
        if (!array.release)
            return count;
        if (array.length > most - count) {
            array.release(&array);
            return -1;
        }
        const uint8_t *present = array.null_count ? array.buffers[0] : 0;
        const struct view *view = (const struct view *)array.buffers[1] + array.offset;
        const uint8_t *const *texts = (const uint8_t *const *)(array.buffers + 2);
        for (int64_t i = 0, bit = array.offset; i < array.length; i++, bit++, view++) {
            if (!view->length || (present && !(present[bit >> 3] >> (bit & 7) & 1)))
                keys[count++] = blank;
            else if (view->length <= sizeof view->at.here)
                keys[count++] = key_of(view->at.here, view->length);
            else
                keys[count++] = key_of(texts[view->at.there.buffer] + view->at.there.offset, view->length);
        }
        array.release(&array);
    }
    return -1;
}
