/* The steps of one recurrent layer in one direction, forwards and backwards in time, for batches of rows with resets.
 *
 * Products over all steps at once (of the inputs, and the gradients of weights and inputs) are the caller's. For each step
 * and each block of hidden units, one pass over the recurrent weights leaves the projections of all gates in registers,
 * where the cell's maths takes them. Rows are independent: a row's numbers depend neither on the others nor on the number
 * of threads.
 *
 * To add a cell, write its maths, forwards and backwards, and add it to forward(), backward() and library.py.
 *
 * Compiled for float, or with -DDOUBLE for double; must not be compiled with -ffast-math: NaN and Inf are values here.
 * All memory is the caller's except packed weights and a tile's work space.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

#ifdef DOUBLE
typedef double real;
typedef long long integer;
#define DEGREE 13
#define MAGIC 0x1.8p52
#define LOW -708.0
#define HIGH 709.0
#define MANTISSA 52
#define BIAS 1023
#else
typedef float real;
typedef int integer;
#define DEGREE 7
#define MAGIC 0x1.8p23f
#define LOW -87.0f
#define HIGH 88.0f
#define MANTISSA 23
#define BIAS 127
#endif

typedef real vec __attribute__((vector_size(BYTES)));
typedef integer ivec __attribute__((vector_size(BYTES)));
typedef real loose __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")
#define LANES ((long)(BYTES / sizeof(real)))

enum { GRU, LSTM };
enum {
    STATES = 2, /* at most, of a cell */
    TILE = 32,  /* rows that go through the steps together */
    WIDE = 2,   /* vectors in a panel of the backward product */
};

/* A layer's memory. Values [rows, steps, ...] are contiguous except the stored states; gradients not wanted are NULL. */
typedef struct {
    long rows, steps, hidden;
    const real *w_hh, *b_hh;            /* [gates * hidden, hidden], [gates * hidden] or NULL */
    const unsigned char *starts;        /* [rows, steps], 1 where the stored state enters */
    const real *stored[STATES];
    long stored_row, stored_step;       /* their strides */
    real *states[STATES];               /* after each step */
    real *ends[STATES];                 /* at the last step of a segment, zero elsewhere */
    real *gates;                        /* [rows, steps, memory * hidden]: projected inputs; then what backward reads */
    const real *grad_output;
    const real *grad_ends[STATES];
    real *grad_gates;                   /* like gates */
    real *entered;                      /* the first state before each step */
    real *grad_stored[STATES];          /* zero except at starts */
    const vec *panels;                  /* packed weights */
    long begin, end;                    /* rows of this thread */
} Layer;

/* ---- vectors ---- */

INLINE vec load(const real *from, long lanes) {
    if (lanes >= LANES) return *(const loose *)from;
    vec value = {0};
    memcpy(&value, from, lanes * sizeof(real));
    return value;
}

INLINE void store(real *to, vec value, long lanes) {
    if (lanes >= LANES) *(loose *)to = value;
    else memcpy(to, &value, lanes * sizeof(real));
}

INLINE vec choose(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

INLINE vec exponential(vec x) {
    static const real factorial[] = {1.0, 1.0, 2.0, 6.0, 24.0, 120.0, 720.0, 5040.0, 40320.0, 362880.0, 3628800.0,
                                     39916800.0, 479001600.0, 6227020800.0};
    const vec zero = {0};
    x = choose(x < zero + (real)LOW, zero + (real)LOW, x); /* a NaN stays */
    x = choose(x > zero + (real)HIGH, zero + (real)HIGH, x);
    vec shifted = x * (real)1.44269504088896340736 + (real)MAGIC; /* rounds to an integer, in the low bits */
    vec whole = shifted - (real)MAGIC;
    vec rest = x - whole * (real)0.693145751953125 - whole * (real)1.42860682030941723212e-6;
    vec power = zero + 1 / factorial[DEGREE];
    UNROLL
    for (int n = DEGREE - 1; n >= 0; n--) power = power * rest + 1 / factorial[n];
    ivec exponent = (ivec)shifted - (ivec)(zero + (real)MAGIC);
    return power * (vec)((exponent + BIAS) << MANTISSA);
}

INLINE vec sigmoid(vec x) { return 1 / (1 + exponential(-x)); }
INLINE vec tangent(vec x) { return 2 / (1 + exponential(-2 * x)) - 1; }

/* ---- cells: one vector of hidden units of one row ----
 *
 * forward: h are the recurrent projections, in the weights' order; gate g's vector is at gates + g * hidden. Overwrites
 * the projected inputs there with what backward reads.
 * backward: grads are those of the states after the step and become those of the states before it, without what comes
 * through the recurrent product. Writes those of the projections to grad_gates, laid out like gates: first those that the
 * recurrent product takes, last those that the input's takes.
 */
typedef void forward_maths(const vec *h, real *gates, long hidden, long n, const real *const *before, real *const *after);
typedef void backward_maths(const real *gates, long hidden, long n, const real *const *before, const real *const *after,
                            vec *grads, real *grad_gates);

/* Gates (h_n, r, z, n): the last gate's two projections are separate. */
INLINE void gru_forward(const vec *h, real *gates, long hidden, long n, const real *const *before, real *const *after) {
    vec r = sigmoid(load(gates + hidden, n) + h[0]);
    vec z = sigmoid(load(gates + 2 * hidden, n) + h[1]);
    vec candidate = tangent(load(gates + 3 * hidden, n) + r * h[2]);
    store(gates, h[2], n);
    store(gates + hidden, r, n);
    store(gates + 2 * hidden, z, n);
    store(gates + 3 * hidden, candidate, n);
    store(after[0], candidate + z * (load(before[0], n) - candidate), n);
}

INLINE void gru_backward(const real *gates, long hidden, long n, const real *const *before, const real *const *after,
                         vec *grads, real *grad_gates) {
    vec h_n = load(gates, n), r = load(gates + hidden, n);
    vec z = load(gates + 2 * hidden, n), candidate = load(gates + 3 * hidden, n);
    vec grad_n = grads[0] * (1 - z) * (1 - candidate * candidate);
    store(grad_gates, grad_n * r, n);
    store(grad_gates + hidden, grad_n * h_n * r * (1 - r), n);
    store(grad_gates + 2 * hidden, grads[0] * (load(before[0], n) - candidate) * z * (1 - z), n);
    store(grad_gates + 3 * hidden, grad_n, n);
    grads[0] *= z;
}

/* Gates (i, f, g, o). */
INLINE void lstm_forward(const vec *h, real *gates, long hidden, long n, const real *const *before, real *const *after) {
    vec i = sigmoid(load(gates, n) + h[0]);
    vec f = sigmoid(load(gates + hidden, n) + h[1]);
    vec g = tangent(load(gates + 2 * hidden, n) + h[2]);
    vec o = sigmoid(load(gates + 3 * hidden, n) + h[3]);
    vec c = f * load(before[1], n) + i * g;
    store(gates, i, n);
    store(gates + hidden, f, n);
    store(gates + 2 * hidden, g, n);
    store(gates + 3 * hidden, o, n);
    store(after[1], c, n);
    store(after[0], o * tangent(c), n);
}

INLINE void lstm_backward(const real *gates, long hidden, long n, const real *const *before, const real *const *after,
                          vec *grads, real *grad_gates) {
    vec i = load(gates, n), f = load(gates + hidden, n);
    vec g = load(gates + 2 * hidden, n), o = load(gates + 3 * hidden, n), c = tangent(load(after[1], n));
    vec grad_c = grads[1] + grads[0] * o * (1 - c * c);
    store(grad_gates, grad_c * g * i * (1 - i), n);
    store(grad_gates + hidden, grad_c * load(before[1], n) * f * (1 - f), n);
    store(grad_gates + 2 * hidden, grad_c * i * (1 - g * g), n);
    store(grad_gates + 3 * hidden, grads[0] * c * o * (1 - o), n);
    grads[0] = (vec){0};
    grads[1] = grad_c * f;
}

/* ---- the product of a few rows with a panel of weights ---- */

/* Rows whose sums fit the registers, next to a row of weights. */
#define MOST_ROWS(vectors) ((BYTES == 64 ? 24 : 12) / (vectors) >= 8 ? 8 : (BYTES == 64 ? 24 : 12) / (vectors) >= 4 ? 4 : 2)

INLINE void multiply(const int rows, const int vectors, vec *sums, const real *left, long stride, long depth,
                     const vec *panel) {
    for (long k = 0; k < depth; k++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            vec weights = panel[k * vectors + v];
            UNROLL
            for (int r = 0; r < rows; r++) sums[r * vectors + v] += left[r * stride + k] * weights;
        }
    }
}

/* Calls block(rows, first row) for all rows, as many at once as there are registers for. */
#define FOR_ROWS(count, most, block)                     \
    for (long r = 0; r < (count);) {                     \
        long rest = (count) - r;                         \
        if ((most) >= 8 && rest >= 8) { block(8, r); r += 8; }      \
        else if ((most) >= 4 && rest >= 4) { block(4, r); r += 4; } \
        else if (rest >= 2) { block(2, r); r += 2; }     \
        else { block(1, r); r += 1; }                    \
    }

INLINE long rounded_up(long size, long multiple) { return (size + multiple - 1) / multiple * multiple; }

static void *allocate(long bytes) { return aligned_alloc(64, rounded_up(bytes, 64)); }

/* ---- forwards ---- */

/* [blocks of hidden units][bias, then each unit of the state][gates][lanes] */
static vec *pack_forward(const Layer *l, long gates) {
    long hidden = l->hidden, blocks = rounded_up(hidden, LANES) / LANES;
    real *packed = allocate(blocks * (hidden + 1) * gates * BYTES), *to = packed;
    if (packed == NULL) return NULL;
    for (long block = 0; block < blocks; block++)
        for (long k = -1; k < hidden; k++)
            for (long g = 0; g < gates; g++)
                for (long lane = 0; lane < LANES; lane++) {
                    long unit = block * LANES + lane, row = g * hidden + unit;
                    const real *from = k < 0 ? l->b_hh : l->w_hh;
                    *to++ = unit >= hidden || from == NULL ? 0 : k < 0 ? from[row] : from[row * hidden + k];
                }
    return (vec *)packed;
}

INLINE void before_step(const Layer *l, const int states, long row, long t, const real **before) {
    long at = row * l->steps + t;
    for (int s = 0; s < states; s++)
        before[s] = t == 0 || l->starts[at] ? l->stored[s] + row * l->stored_row + t * l->stored_step
                                            : l->states[s] + (at - 1) * l->hidden;
}

INLINE int is_end(const Layer *l, long row, long t) {
    return t == l->steps - 1 || l->starts[row * l->steps + t + 1];
}

INLINE void forward_block(const int rows, const int gates, const int memory, const int states, forward_maths *maths,
                          const Layer *l, long row, long t, long block, const real *entering, long stride,
                          const real *(*before)[STATES], const vec *panel) {
    vec sums[8 * 4];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int g = 0; g < gates; g++) sums[r * gates + g] = panel[g];
    }
    multiply(rows, gates, sums, entering, stride, l->hidden, panel + gates);
    long unit = block * LANES, n = l->hidden - unit;
    UNROLL
    for (int r = 0; r < rows; r++) {
        long at = (row + r) * l->steps + t;
        const real *own_before[STATES];
        real *after[STATES];
        for (int s = 0; s < states; s++) {
            own_before[s] = before[r][s] + unit;
            after[s] = l->states[s] + at * l->hidden + unit;
        }
        maths(sums + r * gates, l->gates + at * memory * l->hidden + unit, l->hidden, n, own_before, after);
    }
}

INLINE int forward_rows(const int gates, const int memory, const int states, forward_maths *maths, const Layer *l) {
    long hidden = l->hidden, stride = rounded_up(hidden, LANES), blocks = stride / LANES;
    const real *before[TILE][STATES];
    real *entering = allocate(TILE * stride * sizeof(real));
    if (entering == NULL) return 1;
    for (long begin = l->begin; begin < l->end; begin += TILE) {
        long count = l->end - begin < TILE ? l->end - begin : TILE;
        for (long t = 0; t < l->steps; t++) {
            for (long r = 0; r < count; r++) {
                before_step(l, states, begin + r, t, before[r]);
                memcpy(entering + r * stride, before[r][0], hidden * sizeof(real));
            }
            for (long block = 0; block < blocks; block++) {
                const vec *panel = l->panels + block * (hidden + 1) * gates;
#define BLOCK(rows, r) \
    forward_block(rows, gates, memory, states, maths, l, begin + r, t, block, entering + r * stride, stride, before + r, panel)
                FOR_ROWS(count, MOST_ROWS(gates), BLOCK)
#undef BLOCK
            }
            for (long r = 0; r < count; r++)
                for (int s = 0; s < states; s++) {
                    long at = ((begin + r) * l->steps + t) * hidden;
                    if (is_end(l, begin + r, t)) memcpy(l->ends[s] + at, l->states[s] + at, hidden * sizeof(real));
                    else memset(l->ends[s] + at, 0, hidden * sizeof(real));
                }
        }
    }
    free(entering);
    return 0;
}

/* ---- backwards ---- */

/* [blocks of WIDE vectors of the state][each recurrent projection, in the order of grad_gates][WIDE * lanes] */
static vec *pack_backward(const Layer *l, long gates, long memory) {
    long hidden = l->hidden, all = gates * hidden, split = (memory - gates) * hidden, width = WIDE * LANES;
    long blocks = rounded_up(hidden, width) / width;
    real *packed = allocate(blocks * all * width * sizeof(real)), *to = packed;
    if (packed == NULL) return NULL;
    for (long block = 0; block < blocks; block++)
        for (long k = 0; k < all; k++) {
            const real *from = l->w_hh + (k < split ? k + all - split : k - split) * hidden;
            for (long lane = 0; lane < width; lane++, to++)
                *to = block * width + lane < hidden ? from[block * width + lane] : 0;
        }
    return (vec *)packed;
}

INLINE void backward_row(const int memory, const int states, backward_maths *maths, const Layer *l, long row, long t,
                         real *const *grads, real *grad_gates) {
    long hidden = l->hidden, at = row * l->steps + t;
    int ends = is_end(l, row, t);
    const real *before[STATES];
    before_step(l, states, row, t, before);
    memcpy(l->entered + at * hidden, before[0], hidden * sizeof(real));
    for (long unit = 0; unit < hidden; unit += LANES) {
        long n = hidden - unit;
        const real *own_before[STATES], *after[STATES];
        vec own[STATES];
        for (int s = 0; s < states; s++) {
            own_before[s] = before[s] + unit;
            after[s] = l->states[s] + at * hidden + unit;
            own[s] = load(grads[s] + unit, n);
            if (ends && l->grad_ends[s] != NULL) own[s] += load(l->grad_ends[s] + at * hidden + unit, n);
        }
        if (l->grad_output != NULL) own[0] += load(l->grad_output + at * hidden + unit, n);
        maths(l->gates + at * memory * hidden + unit, hidden, n, own_before, after, own, grad_gates + unit);
        for (int s = 0; s < states; s++) store(grads[s] + unit, own[s], n);
    }
    memcpy(l->grad_gates + at * memory * hidden, grad_gates, memory * hidden * sizeof(real));
}

INLINE void backward_block(const int rows, real *grads, long grads_stride, const real *grad_gates, long stride, long depth,
                           const vec *panel) {
    vec sums[8 * WIDE];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < WIDE; v++) sums[r * WIDE + v] = load(grads + r * grads_stride + v * LANES, LANES);
    }
    multiply(rows, WIDE, sums, grad_gates, stride, depth, panel);
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < WIDE; v++) store(grads + r * grads_stride + v * LANES, sums[r * WIDE + v], LANES);
    }
}

INLINE int backward_rows(const int gates, const int memory, const int states, backward_maths *maths, const Layer *l) {
    long hidden = l->hidden, stride = rounded_up(hidden, WIDE * LANES), blocks = stride / (WIDE * LANES);
    real *work = allocate(TILE * (states * stride + memory * hidden) * sizeof(real));
    if (work == NULL) return 1;
    real *grad_gates = work + TILE * states * stride;
    for (long begin = l->begin; begin < l->end; begin += TILE) {
        long count = l->end - begin < TILE ? l->end - begin : TILE;
        memset(work, 0, TILE * states * stride * sizeof(real));
        for (long t = l->steps - 1; t >= 0; t--) {
            for (long r = 0; r < count; r++) {
                real *grads[STATES];
                for (int s = 0; s < states; s++) grads[s] = work + (s * TILE + r) * stride;
                backward_row(memory, states, maths, l, begin + r, t, grads, grad_gates + r * memory * hidden);
            }
            if (t > 0 || l->grad_stored[0] != NULL)
                for (long block = 0; block < blocks; block++) {
                    const vec *panel = l->panels + block * gates * hidden * WIDE;
#define BLOCK(rows, r)                                                                                          \
    backward_block(rows, work + r * stride + block * WIDE * LANES, stride, grad_gates + r * memory * hidden, \
                   memory * hidden, gates * hidden, panel)
                    FOR_ROWS(count, MOST_ROWS(WIDE), BLOCK)
#undef BLOCK
                }
            for (long r = 0; r < count; r++) {
                long at = (begin + r) * l->steps + t;
                int starts = t == 0 || l->starts[at];
                for (int s = 0; s < states; s++) {
                    real *grad = work + (s * TILE + r) * stride, *to = l->grad_stored[s];
                    if (to != NULL && starts) memcpy(to + at * hidden, grad, hidden * sizeof(real));
                    if (to != NULL && !starts) memset(to + at * hidden, 0, hidden * sizeof(real));
                    if (starts) memset(grad, 0, hidden * sizeof(real));
                }
            }
        }
    }
    free(work);
    return 0;
}

/* ---- threads and entry points ---- */

static void *gru_forward_rows(void *l) { return (void *)(long)forward_rows(3, 4, 1, gru_forward, l); }
static void *gru_backward_rows(void *l) { return (void *)(long)backward_rows(3, 4, 1, gru_backward, l); }
static void *lstm_forward_rows(void *l) { return (void *)(long)forward_rows(4, 4, 2, lstm_forward, l); }
static void *lstm_backward_rows(void *l) { return (void *)(long)backward_rows(4, 4, 2, lstm_backward, l); }

enum { MOST_THREADS = 256 };

/* Splits the rows between threads; returns 0, or 1 if memory ran out. What no thread can be started for runs here. */
static int run(void *(*rows_of)(void *), const Layer *whole, long threads) {
    Layer parts[MOST_THREADS];
    pthread_t running[MOST_THREADS];
    int is_running[MOST_THREADS] = {0}, failed = 0;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > whole->rows) threads = whole->rows;
    for (long p = 0; p < threads; p++) {
        parts[p] = *whole;
        parts[p].begin = whole->rows * p / threads;
        parts[p].end = whole->rows * (p + 1) / threads;
        if (p > 0) is_running[p] = pthread_create(&running[p], NULL, rows_of, &parts[p]) == 0;
    }
    for (long p = 0; p < threads; p++)
        if (!is_running[p]) failed |= rows_of(&parts[p]) != NULL;
    for (long p = 0; p < threads; p++) {
        void *result = NULL;
        if (is_running[p]) pthread_join(running[p], &result);
        failed |= result != NULL;
    }
    return failed;
}

int forward(int cell, long threads, Layer *l) {
    vec *packed = pack_forward(l, cell == GRU ? 3 : 4);
    l->panels = packed;
    int failed = packed == NULL || run(cell == GRU ? gru_forward_rows : lstm_forward_rows, l, threads);
    free(packed);
    return failed;
}

int backward(int cell, long threads, Layer *l) {
    vec *packed = pack_backward(l, cell == GRU ? 3 : 4, 4);
    l->panels = packed;
    int failed = packed == NULL || run(cell == GRU ? gru_backward_rows : lstm_backward_rows, l, threads);
    free(packed);
    return failed;
}
