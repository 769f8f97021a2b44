/* Compiled loops of the private step. dpfest/kernels.py calls them; each has a reference in Python, named here.
 *
 * Floating point is strict (no -ffast-math): the compiler may fuse a product and a sum, and use wider registers, but may
 * not reorder. With GCC and glibc on x86-64 each function is compiled for AVX-512, for AVX2 and for any processor, and
 * the one for the processor at hand is taken when the library is loaded.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__GLIBC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

#ifdef __FAST_MATH__
#error "strict floating point is needed: without it, noise is off its grid"
#endif

#define CHUNK 512 /* pairs at a time: their work arrays stay in the first-level cache */


/* What linkers of Python extensions export. The library is no Python module: ctypes loads it. */
void *PyInit__kernels(void) { return 0; }

static inline double from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t to_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The nearest double to an integer. A cast, in operations that AVX2 has: 2^52 + lower half, 2^84 + 2^63 + upper half,
 * both exact; their sum is rounded once. */
static inline double to_double(int64_t whole)
{
    uint64_t lower = 0x4330000000000000u | ((uint64_t)whole & 0xffffffffu);
    uint64_t upper = 0x4530000080000000u ^ ((uint64_t)whole >> 32);
    return (from_bits(upper) - (0x1p84 + 0x1p63 + 0x1p52)) + from_bits(lower);
}

/* The nearest whole number to |x| < 2^51. */
static inline double nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }

/* kernels.py refuses a library of another version: one left from older sources, or 0, one that does not round. */
int64_t dpfest_kernels_version(void)
{
    volatile double third = 1.0 / 3;
    return nearest(third) == 0 && nearest(2 * third) == 1 ? 4 : 0;
}

/* Reference: chacha.py. The block function of ChaCha20 (RFC 8439) at n inputs: 256 bits of key, then words 12 .. 15 of
 * the state: the two halves of counters[i], then the two of nonce, or of nonces[i]. Word w of block i, 64 bits, goes to
 * out[(w % 2) parity + (w / 2) pair + i block]. */
FOR_EACH_PROCESSOR
void dpfest_chacha20(const uint32_t *key, const uint64_t *counters, uint64_t nonce, const uint64_t *nonces, int64_t n,
                     uint64_t *out, int64_t parity, int64_t pair, int64_t block)
{
    enum { LANES = 16 }; /* blocks at a time: a word of all their states is a register, or two */
    static const uint32_t sigma[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
    for (int64_t start = 0; start < n; start += LANES) {
        int64_t lanes = n - start < LANES ? n - start : LANES;
        uint32_t state[16][LANES], x[16][LANES];
        for (int i = 0; i < LANES; i++) {
            int64_t at = start + (i < lanes ? i : 0);
            uint64_t beside = nonces ? nonces[at] : nonce;
            for (int w = 0; w < 4; w++)
                state[w][i] = sigma[w];
            for (int w = 0; w < 8; w++)
                state[4 + w][i] = key[w];
            state[12][i] = (uint32_t)counters[at];
            state[13][i] = (uint32_t)(counters[at] >> 32);
            state[14][i] = (uint32_t)beside;
            state[15][i] = (uint32_t)(beside >> 32);
        }
        memcpy(x, state, sizeof x);
#define ROTATED(v, by) ((v) << (by) | (v) >> (32 - (by)))
#define QUARTER(a, b, c, d)                                                                                            \
    for (int i = 0; i < LANES; i++) {                                                                                  \
        uint32_t p = x[a][i], q = x[b][i], r = x[c][i], s = x[d][i];                                                   \
        p += q, s ^= p, s = ROTATED(s, 16);                                                                            \
        r += s, q ^= r, q = ROTATED(q, 12);                                                                            \
        p += q, s ^= p, s = ROTATED(s, 8);                                                                             \
        r += s, q ^= r, q = ROTATED(q, 7);                                                                             \
        x[a][i] = p, x[b][i] = q, x[c][i] = r, x[d][i] = s;                                                            \
    }
        for (int twice = 0; twice < 10; twice++) {
            QUARTER(0, 4, 8, 12)
            QUARTER(1, 5, 9, 13)
            QUARTER(2, 6, 10, 14)
            QUARTER(3, 7, 11, 15)
            QUARTER(0, 5, 10, 15)
            QUARTER(1, 6, 11, 12)
            QUARTER(2, 7, 8, 13)
            QUARTER(3, 4, 9, 14)
        }
        for (int w = 0; w < 8; w++) {
            uint64_t *word = out + (w % 2) * parity + (w / 2) * pair + start * block;
            for (int i = 0; i < lanes; i++) {
                uint64_t low = x[2 * w][i] + state[2 * w][i], high = x[2 * w + 1][i] + state[2 * w + 1][i];
                word[i * block] = (uint32_t)low | high << 32;
            }
        }
    }
}

/* ln x of a normal x > 0, with an error below 2.5 units in the last place; of 0, some number below -700.
 *
 * x = 2^k m with sqrt(1/2) <= m < sqrt(2), f = m - 1 (exact), s = f / (2 + f): ln m = 2 atanh s = f - s (f - R), where
 * R(s^2) = 2 atanh(s) / s - 2 by interpolation in seven Chebyshev nodes, with an error below 2^-57 ln m. For k = 0 the
 * product s (f - R) has a relative error of at most 5 2^-53 and is at most 0.21 of ln m; one rounding follows. Else
 * |ln x| > 0.34, k times the upper part of ln 2 (35 bits) is exact, and two roundings of at most 2^-54 precede the last.
 */
static inline double logarithm(double x)
{
    const uint64_t root = 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
    uint64_t bits = to_bits(x) - root;
    double k = from_bits(0x4330000000000000u | ((bits >> 52) ^ 0x800u)) - (0x1p52 + 0x800);
    double m = from_bits((bits & 0xfffffffffffffu) + root);
    double f = m - 1, s = f / (2 + f), z = s * s, r;
    r = 0.14616449685043406;
    r = r * z + 0.15331721600556042;
    r = r * z + 0.18182889125261723;
    r = r * z + 0.2222221113479508;
    r = r * z + 0.28571428625975487;
    r = r * z + 0.39999999999899505;
    r = r * z + 0.666666666666667;
    r = r * z;
    return k * 0x1.62e42feep-1 - ((s * (f - r) - k * 0x1.a39ef35793c76p-33) - f);
}

/* sin(pi a / 4) of a word w = 2^63 a: box_muller.py's polynomial. */
static inline double sine_of_half(double word)
{
    double square = word * word, p;
    p = 6.877360573166326e-12 * 0x1p-819;
    p = p * square + -1.7571500746983935e-09 * 0x1p-693;
    p = p * square + 3.133616225433416e-07 * 0x1p-567;
    p = p * square + -3.657620415891387e-05 * 0x1p-441;
    p = p * square + 0.002490394570188844 * 0x1p-315;
    p = p * square + -0.08074551218828054 * 0x1p-189;
    p = p * square + 0.7853981633974483 * 0x1p-63;
    return p * word;
}

/* Multiply values by their deviations (NULL for 1); write the nearest whole numbers to `units`, the distances to
 * `values`; return whether one exceeds `most`. */
static inline int64_t settle(double *values, const double *deviations, int64_t n, double most, double *units)
{
    int64_t unsure = 0;
    if (deviations)
        for (int64_t i = 0; i < n; i++)
            values[i] *= deviations[i];
    for (int64_t i = 0; i < n; i++) {
        double unit = nearest(values[i]), off = fabs(values[i] - unit);
        units[i] = unit;
        values[i] = off;
        unsure |= !(off <= most);
    }
    return unsure;
}

/* Reference: box_muller.py, _nearest.
 *
 * words [2 p]: signed words of p = ceil(count / 2) radii, then of p angles. units [2 p]: p cosines, then p sines, of
 * which only the first `count` count. deviation: of all variates, or 1 and `deviations` [count] of each. A variate is
 * unsure if it is further than `most` from its unit, or if its ln u is not in least .. highest: its place, its distance
 * and its ln u go to places, offs and logarithms [2 p]. Returns how many are unsure. */
FOR_EACH_PROCESSOR
int64_t dpfest_nearest_normals(const int64_t *words, int64_t count, double deviation, const double *deviations,
                               double most, double least, double highest, double *units, int64_t *places, double *offs,
                               double *logarithms)
{
    double cosines[CHUNK], sines[CHUNK], logs[CHUNK], scale = -8 * (deviation * deviation);
    int64_t pairs = (count + 1) / 2, found = 0;
    for (int64_t start = 0; start < pairs; start += CHUNK) {
        int64_t n = pairs - start < CHUNK ? pairs - start : CHUNK, beyond = pairs + start, unsure = 0;
        int64_t with_sine = count - beyond < n ? count - beyond : n; /* an odd count's last pair has none */
        const int64_t *radii = words + start, *angles = words + beyond;
        for (int64_t i = 0; i < n; i++) {
            double log_u = logarithm(fabs(to_double(radii[i])) * 0x1p-63);
            double twice_radius = sqrt(log_u * scale);
            double sine = sine_of_half(to_double(angles[i])), square = sine * sine;
            double cosine = (0.5 - square) * twice_radius;
            cosines[i] = from_bits(to_bits(cosine) ^ ((uint64_t)radii[i] & 0x8000000000000000u));
            sines[i] = sine * sqrt(1 - square) * twice_radius;
            logs[i] = log_u;
            unsure |= !(log_u >= least) | !(log_u <= highest);
        }
        unsure |= settle(cosines, deviations ? deviations + start : 0, n, most, units + start);
        unsure |= settle(sines, deviations ? deviations + beyond : 0, with_sine, most, units + beyond);
        for (int64_t i = 0; unsure && i < 2 * n; i++) {
            int64_t sine = i >= n, pair = i - sine * n;
            double off = sine ? sines[pair] : cosines[pair];
            int extreme = !(logs[pair] >= least && logs[pair] <= highest);
            if ((!sine || pair < with_sine) && (extreme || !(off <= most))) {
                places[found] = sine * pairs + start + pair;
                offs[found] = off;
                logarithms[found++] = logs[pair];
            }
        }
    }
    return found;
}

/* Reference: gaussian.py, _add. Round values to multiples of `size`, or of each one's own in `sizes` (NULL for none),
 * and add units of it. */
#define ADD_UNITS(name, type, whole)                                                                                   \
    FOR_EACH_PROCESSOR void name(type *values, const whole *units, int64_t n, double size, const double *sizes)        \
    {                                                                                                                  \
        double inverse = 1 / size;                                                                                     \
        if (sizes)                                                                                                     \
            for (int64_t i = 0; i < n; i++)                                                                            \
                values[i] = (type)((rint(values[i] * (1 / sizes[i])) + units[i]) * sizes[i]);                          \
        else                                                                                                           \
            for (int64_t i = 0; i < n; i++)                                                                            \
                values[i] = (type)((rint(values[i] * inverse) + units[i]) * size);                                     \
    }

ADD_UNITS(dpfest_add_units_float_double, float, double)
ADD_UNITS(dpfest_add_units_double_double, double, double)
ADD_UNITS(dpfest_add_units_float_int, float, int32_t)
ADD_UNITS(dpfest_add_units_double_int, double, int32_t)

/* Reference: correlated.py, _filter_units. past [slots] [count]: whole numbers of earlier steps, the oldest in number
 * `slot`. Takes sum_s weights[s] past[s] from units [n], at places first .. first + n - 1; what is left, over 2^bits and
 * rounded (halves up), replaces the oldest. Exact while sums stay below 2^53, in any order, fused or not. */
FOR_EACH_PROCESSOR
void dpfest_filter_units(const double *units, int64_t n, int32_t *past, int64_t count, int64_t first,
                         const double *weights, int64_t slots, int64_t slot, int64_t bits)
{
    enum { LANES = 32 }; /* sums at a time: they stay in registers while the slots pass */
    double half = ldexp(0.5, (int)bits), inverse = ldexp(1, (int)-bits);
    int64_t start = 0;
    for (; start + LANES <= n; start += LANES) {
        const int32_t *earlier = past + first + start;
        int32_t *found = past + slot * count + first + start;
        double sums[LANES];
        for (int i = 0; i < LANES; i++)
            sums[i] = units[start + i] + half;
        for (int64_t s = 0; s < slots; s++)
            for (int i = 0; i < LANES; i++)
                sums[i] -= weights[s] * earlier[s * count + i];
        for (int i = 0; i < LANES; i++)
            found[i] = (int32_t)floor(sums[i] * inverse);
    }
    for (; start < n; start++) {
        double sum = units[start] + half;
        for (int64_t s = 0; s < slots; s++)
            sum -= weights[s] * past[s * count + first + start];
        past[slot * count + first + start] = (int32_t)floor(sum * inverse);
    }
}

/* Sort keys [n] by their bits from `low` on, `bits` of them, keeping the order of equal ones; `spare` [n] is room. */
static void sort_by_digits(uint64_t *keys, uint64_t *spare, int64_t n, int low, int bits)
{
    enum { DIGIT = 11, MASK = (1 << DIGIT) - 1 };
    uint64_t *from = keys, *to = spare, *swap;
    for (int shift = low; shift < low + bits; shift += DIGIT) {
        int64_t first[MASK + 1] = {0}, sum = 0;
        for (int64_t i = 0; i < n; i++)
            first[from[i] >> shift & MASK]++;
        for (int digit = 0; digit <= MASK; digit++) {
            int64_t count = first[digit];
            first[digit] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++)
            to[first[from[i] >> shift & MASK]++] = from[i];
        swap = from, from = to, to = swap;
    }
    if (from != keys)
        memcpy(keys, from, sizeof *keys * (size_t)n);
}

static int bits_of(uint64_t whole)
{
    int bits = 0;
    for (; whole; whole >>= 1)
        bits++;
    return bits;
}

/* Reference: embeddings.py, _grouped. Sort look-ups by row, then by position, and find their distinct (row, example)
 * pairs, or take each for a pair if not `merged`.
 *
 * row, example [n]: of each look-up; equal rows' examples ascend. sizes [tables]: lengths of consecutive parts, whose
 * rows ascend. order [n]: position of each sorted look-up. starts [n]: first sorted look-up of each pair; example_of,
 * row_of [n]: a pair's example, and the place of its row in rows [n], of which counts [n] says how many pairs it has.
 * keys [2 n] is room. Returns the number of rows; the number of pairs goes to *pairs. */
int64_t dpfest_group_lookups(const int64_t *row, const int64_t *example, int64_t n, const int64_t *sizes, int64_t tables,
                             int64_t merged, int64_t *order, int64_t *starts, int64_t *example_of, int64_t *row_of,
                             int64_t *rows, int64_t *counts, uint64_t *keys, int64_t *pairs)
{
    int places = bits_of((uint64_t)n);
    int64_t found = 0, distinct = 0;
    for (int64_t table = 0, begin = 0; table < tables; begin += sizes[table++]) {
        int64_t size = sizes[table], least = size ? row[begin] : 0, most = least;
        for (int64_t i = begin; i < begin + size; i++) {
            least = row[i] < least ? row[i] : least;
            most = row[i] > most ? row[i] : most;
        }
        for (int64_t i = begin; i < begin + size; i++)
            keys[i] = (uint64_t)(row[i] - least) << places | (uint64_t)i;
        sort_by_digits(keys + begin, keys + n, size, places, bits_of((uint64_t)(most - least)));
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (int64_t)(keys[i] & (((uint64_t)1 << places) - 1));
        int64_t new_row = i == 0 || row[at] != row[order[i - 1]];
        order[i] = at;
        if (merged && !new_row && example[at] == example_of[found - 1])
            continue;
        if (new_row) {
            rows[distinct] = row[at];
            counts[distinct++] = 0;
        }
        counts[distinct - 1]++;
        starts[found] = i;
        example_of[found] = example[at];
        row_of[found++] = distinct - 1;
    }
    *pairs = found;
    return distinct;
}

/* Reference: contributions.py, Contributions.clipped. weight [examples] is room; sums [rows] receives the map. */
FOR_EACH_PROCESSOR
void dpfest_clipped_map(const int64_t *example, const int64_t *row_of, int64_t pairs, int64_t examples, int64_t rows,
                        double clipping_norm, double grid, double *weight, double *sums)
{
    memset(weight, 0, sizeof *weight * (size_t)examples);
    memset(sums, 0, sizeof *sums * (size_t)rows);
    for (int64_t pair = 0; pair < pairs; pair++)
        weight[example[pair]] += 1;
    for (int64_t i = 0; i < examples; i++) {
        double norm = sqrt(weight[i]), one;
        one = clipping_norm / (norm > clipping_norm ? norm : clipping_norm);
        if (grid > 0) {
            one = one < 1 ? one * (1 - 0x1p-51) : one;
            one = floor(one / grid) * grid;
        }
        weight[i] = one;
    }
    for (int64_t pair = 0; pair < pairs; pair++)
        sums[row_of[pair]] += weight[example[pair]];
}

/* Reference: tables.py, locate. position [n]: of each of the sorted `wanted` [n] among sorted distinct rows [m]; -1 for
 * one that is not there. Steps double until they pass the wanted row, so that neither list's length alone counts. */
void dpfest_locate(const int64_t *wanted, int64_t n, const int64_t *rows, int64_t m, int64_t *position)
{
    int64_t low = 0; /* all rows before it are smaller */
    for (int64_t i = 0; i < n; i++) {
        int64_t step = 1, high;
        while (low + step <= m && rows[low + step - 1] < wanted[i]) {
            low += step;
            step *= 2;
        }
        high = low + step <= m ? low + step - 1 : m; /* the row at `high`, if any, is not smaller */
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (rows[middle] < wanted[i])
                low = middle + 1;
            else
                high = middle;
        }
        position[i] = low < m && rows[low] == wanted[i] ? low : -1;
    }
}

/* The pairs of a micro-batch, sorted by row, and with them each table's gradients: [*, dim], rows `stride` apart, of
 * which its row number `source - first` is a pair's. Pairs of table t end at ends[t]. position: of each distinct row
 * among the survivors, or -1; NULL if all survive, each at its own place. The survivors of table t begin at bounds[t]. */
struct pairs {
    int64_t tables;
    const int64_t *ends, *dims, *strides, *firsts, *bounds;
    const int64_t *example, *source, *row_of, *position;
};

/* Reference: embeddings.py, MaskedLookups.add_squared_norms. squared [examples] += squared norms over survivors. */
#define ADD_SQUARED_NORMS(name, type)                                                                                  \
    FOR_EACH_PROCESSOR void name(const struct pairs *p, const type *const *gradients, type *squared)                   \
    {                                                                                                                  \
        for (int64_t table = 0, pair = 0; table < p->tables; table++)                                                  \
            for (int64_t dim = p->dims[table]; pair < p->ends[table]; pair++) {                                        \
                const type *row = gradients[table] + (p->source[pair] - p->firsts[table]) * p->strides[table];         \
                double sums[8] = {0}, rest = 0;                                                                        \
                int64_t i = 0;                                                                                         \
                if (p->position && p->position[p->row_of[pair]] < 0)                                                   \
                    continue;                                                                                          \
                for (; i + 8 <= dim; i += 8)                                                                           \
                    for (int lane = 0; lane < 8; lane++)                                                               \
                        sums[lane] += (double)row[i + lane] * (double)row[i + lane];                                   \
                for (; i < dim; i++)                                                                                   \
                    rest += (double)row[i] * (double)row[i];                                                           \
                for (int lane = 0; lane < 8; lane++)                                                                   \
                    rest += sums[lane];                                                                                \
                squared[p->example[pair]] += (type)rest;                                                               \
            }                                                                                                          \
    }

ADD_SQUARED_NORMS(dpfest_add_squared_norms_float, float)
ADD_SQUARED_NORMS(dpfest_add_squared_norms_double, double)

/* Reference: embeddings.py, MaskedLookups.add_weighted_sums. Add each pair's gradient, times its example's weight (NULL
 * for 1), to its row in sums[table] [survivors, dim], in the order of the pairs. */
#define ADD_WEIGHTED_SUMS(name, type, wide)                                                                            \
    FOR_EACH_PROCESSOR void name(const struct pairs *p, const type *const *gradients, const type *weight,              \
                                 wide *const *sums)                                                                    \
    {                                                                                                                  \
        for (int64_t table = 0, pair = 0; table < p->tables; table++)                                                  \
            for (int64_t dim = p->dims[table]; pair < p->ends[table]; pair++) {                                        \
                const type *row = gradients[table] + (p->source[pair] - p->firsts[table]) * p->strides[table];         \
                int64_t at = p->position ? p->position[p->row_of[pair]] : p->row_of[pair];                             \
                wide factor = weight ? (wide)weight[p->example[pair]] : 1;                                             \
                wide *restrict sum;                                                                                    \
                if (at < 0)                                                                                            \
                    continue;                                                                                          \
                sum = sums[table] + (at - p->bounds[table]) * dim;                                                     \
                for (int64_t i = 0; i < dim; i++)                                                                      \
                    sum[i] += factor * (wide)row[i];                                                                   \
            }                                                                                                          \
    }

ADD_WEIGHTED_SUMS(dpfest_add_weighted_sums_float_float, float, float)
ADD_WEIGHTED_SUMS(dpfest_add_weighted_sums_float_double, float, double)
ADD_WEIGHTED_SUMS(dpfest_add_weighted_sums_double_double, double, double)
