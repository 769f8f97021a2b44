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
int64_t dpfest_hashing_version(void) { return 2; }

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

/* One numeric feature (table_columns.transformed): (x - mean) / deviation, at most `largest` in size, 0 where there is no
 * number. Returns whether every number, and every value, is finite or missing. */
FOR_EACH_PROCESSOR
int64_t dpfest_standardised(const double *restrict field, int64_t count, double mean, double deviation, double largest,
                            float *restrict out)
{
    int64_t infinite = 0;
    for (int64_t i = 0; i < count; i++) {
        double value = (field[i] - mean) / deviation;
        value = value > largest ? largest : value;
        value = value < -largest ? -largest : value;
        float rounded = (float)value;
        infinite |= (field[i] - field[i] != 0) & (field[i] == field[i]);
        infinite |= (rounded - rounded != 0) & (rounded == rounded);
        out[i] = rounded == rounded ? rounded : 0;
    }
    return !infinite;
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

/* The first 1..8 bytes of a word. */
static inline uint64_t first(uint64_t word, uint32_t bytes) { return word & (~UINT64_C(0) >> (64 - 8 * bytes)); }

static inline uint64_t word_at(const uint8_t *text)
{
    uint64_t word;
    memcpy(&word, text, sizeof word);
    return word;
}

/* The key of a text that is not empty (table_columns.TABLE_HASH). Words are little-endian, as hosts here are. Nothing is
 * read beyond the view, or the text: the last bytes of a long one are those of the 8 bytes with which it ends. */
static inline uint64_t key_of(const struct view *view, const uint8_t *const *texts)
{
    uint32_t length = view->length;
    int in_place = length <= sizeof view->at.here;
    const uint8_t *text = in_place ? view->at.here : texts[view->at.there.buffer] + view->at.there.offset;
    uint64_t number, key;
    if (whole_number(text, length, &number))
        return splitmix64(number);
    key = splitmix64(length);
    if (in_place) {
        key = splitmix64(key ^ first(word_at(text), length < 8 ? length : 8));
        return length > 8 ? splitmix64(key ^ first(word_at(text + 4) >> 32, length - 8)) : key;
    }
    for (; length >= 8; text += 8, length -= 8)
        key = splitmix64(key ^ word_at(text));
    return length ? splitmix64(key ^ word_at(text + length - 8) >> (64 - 8 * length)) : key;
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
            else
                keys[count++] = key_of(view, texts);
        }
        array.release(&array);
    }
    return -1;
}
