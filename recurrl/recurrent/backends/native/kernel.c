/* One recurrent layer in one direction, forwards and backwards, for batches of rows with resets.
 *
 * A tile of rows goes through the steps together. For each step and each block of hidden units, one pass over the
 * weights leaves the projections of all gates in registers, where the cell's maths takes them. Backwards, a tile's
 * gradients of the projections stay in cache until those of states, inputs and weights are computed from them. Rows are
 * independent: what is computed for a row depends neither on the others nor on the number of threads. Only the
 * gradients of the weights are sums over the rows, those of each thread first.
 *
 * To add a cell, write its maths, forwards and backwards, and add it to forward(), backward() and the cell
 * id in __init__.py.
 *
 * Compiled for float, or with -DDOUBLE for double; must not be compiled with -ffast-math: NaN and Inf are values here.
 * All memory is the caller's except packed weights and work space.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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
    STATES = 2,  /* at most, of a cell */
    TILE = 32,   /* rows that go through the steps together */
    CHUNK = 128, /* row steps whose gradients are kept until those of the weights are computed; at least TILE */
    WIDE = 2,    /* vectors in a panel of the backward products */
};

/* A layer's memory. Values [rows, steps, ...] are contiguous but for those with strides; what is not wanted is NULL.
 * The caller passes the first fields of these structs, as an array of longs; further ones are zero. */
enum { FIELDS = 48 }; /* library.py's */

typedef struct {
    long cell, threads;
    long rows, steps, inputs, hidden;
    long stored_row, stored_step;                 /* strides of stored */
    const real *w_ih, *w_hh, *b_ih, *b_hh;        /* [gates * hidden, inputs or hidden], [gates * hidden] */
    const real *x;                                /* [rows, steps, inputs] */
    const unsigned char *starts;                  /* [rows, steps], 1 where the stored state enters besides step 0 */
    const real *stored[STATES];
    real *states[STATES];                         /* after each step */
    real *gates;                                  /* [rows, steps, memory * hidden]: what backward reads */
    const real *grad_states[STATES];
    real *grad_w_ih, *grad_w_hh, *grad_b_ih, *grad_b_hh;
    real *grad_x;
    real *grad_stored[STATES];                    /* zero except at starts */
    /* Set here. */
    const real *packed[2];                        /* weights: forwards in one; backwards of the state, of the input */
    real *sums;                                   /* gradients of the weights, of this thread's rows */
    long begin, end;                              /* rows of this thread */
} Layer;

_Static_assert(sizeof(Layer) <= FIELDS * sizeof(long), "see FIELDS");

/* ---- sizes ---- */

INLINE long rounded_up(long size, long multiple) { return (size + multiple - 1) / multiple * multiple; }

#define PANEL (WIDE * LANES)

/* Columns of a row of work space: whole panels; or an odd number of vectors, which spreads rows over the cache. */
INLINE long wide(long size) { return rounded_up(size, PANEL); }
INLINE long spread(long size) { return (rounded_up(size, LANES) / LANES | 1) * LANES; }

static real *allocate(long values) { return aligned_alloc(64, rounded_up(values * sizeof(real), 64)); }

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

/* Brings vectors that lie stride apart into the cache. */
INLINE void fetch(const real *from, const int vectors, long stride) {
    for (int v = 0; v < vectors; v++) __builtin_prefetch(from + v * stride, 0, 2);
}

INLINE vec choose(ivec where, vec yes, vec no) { return (vec)((where & (ivec)yes) | (~where & (ivec)no)); }

/* e^x as scale * (1 + part): returns the part, which lies within 0.42 of 0. */
INLINE vec split_exponential(vec x, vec *scale) {
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
    for (int n = DEGREE - 1; n >= 1; n--) power = power * rest + 1 / factorial[n];
    ivec exponent = (ivec)shifted - (ivec)(zero + (real)MAGIC);
    *scale = (vec)((exponent + BIAS) << MANTISSA);
    return power * rest;
}

INLINE vec sigmoid(vec x) {
    vec scale, part = split_exponential(-x, &scale);
    return 1 / (1 + scale + scale * part);
}

/* From e^2x - 1, with all digits near 0, where 2 * sigmoid(2x) - 1 loses them. */
INLINE vec tangent(vec x) {
    vec scale, part = split_exponential(2 * x, &scale), minus_one = scale - 1 + scale * part;
    return minus_one / (minus_one + 2);
}

/* ---- cells: one vector of hidden units of one row ----
 *
 * forward: sums are those of the two projections, in the weights' order; the last gate's input projection may lie
 * apart. Unless gates is NULL, writes there what backward reads, the vector of gate g at gates + g * hidden.
 * backward: grads are those of the states after the step and become those of the states before it, without what comes
 * through the recurrent product. Writes those of the projections to grad_gates, laid out like gates: first those that
 * the recurrent product takes, last those that the input's takes.
 */
typedef const real *const *Known;
typedef void forward_maths(const vec *sums, const vec *apart, real *gates, long hidden, long n, Known before,
                           real *const *after);
typedef void backward_maths(const real *gates, long hidden, long n, Known before, Known after, vec *grads,
                            real *grad_gates);

/* Gates (h_n, r, z, n): the last gate's two projections are separate. */
INLINE void gru_forward(const vec *sums, const vec *apart, real *gates, long hidden, long n, Known before,
                        real *const *after) {
    vec r = sigmoid(sums[0]), z = sigmoid(sums[1]), candidate = tangent(*apart + r * sums[2]);
    if (gates != NULL) {
        store(gates, sums[2], n);
        store(gates + hidden, r, n);
        store(gates + 2 * hidden, z, n);
        store(gates + 3 * hidden, candidate, n);
    }
    store(after[0], candidate + z * (load(before[0], n) - candidate), n);
}

INLINE void gru_backward(const real *gates, long hidden, long n, Known before, Known after, vec *grads,
                         real *grad_gates) {
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
INLINE void lstm_forward(const vec *sums, const vec *apart, real *gates, long hidden, long n, Known before,
                         real *const *after) {
    vec i = sigmoid(sums[0]), f = sigmoid(sums[1]), g = tangent(sums[2]), o = sigmoid(sums[3]);
    vec c = f * load(before[1], n) + i * g;
    if (gates != NULL) {
        store(gates, i, n);
        store(gates + hidden, f, n);
        store(gates + 2 * hidden, g, n);
        store(gates + 3 * hidden, o, n);
    }
    store(after[1], c, n);
    store(after[0], o * tangent(c), n);
}

INLINE void lstm_backward(const real *gates, long hidden, long n, Known before, Known after, vec *grads,
                          real *grad_gates) {
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

/* ---- products of a few rows with a panel of some vectors ---- */

/* Rows whose sums fit the registers, next to a row of weights. */
#define FITTING(vectors) ((BYTES == 64 ? 24 : 12) / (vectors))
#define MOST_ROWS(vectors) (FITTING(vectors) < 8 ? FITTING(vectors) : 8)

/* Calls block(rows, first row) for all rows, as many at once as there are registers for. */
#define FOR_ROWS(count, most, block)                                  \
    for (long r = 0; r < (count);) {                                  \
        long rest = (count) - r;                                      \
        if ((most) == 8 && rest >= 8) { block(8, r); r += 8; }        \
        else if ((most) == 6 && rest >= 6) { block(6, r); r += 6; }   \
        else if ((most) >= 4 && rest >= 4) { block(4, r); r += 4; }   \
        else if ((most) == 3 && rest >= 3) { block(3, r); r += 3; }   \
        else if (rest >= 2) { block(2, r); r += 2; }                  \
        else { block(1, r); r += 1; }                                 \
    }

/* sums[row * vectors + v] += the product over k of left[row * stride + k * step] and vector v of row k of the panel. */
INLINE void multiply(const int rows, const int vectors, vec *sums, const real *left, long stride, long step, long depth,
                     const real *panel, long panel_stride) {
    for (long k = 0; k < depth; k++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            vec weights = load(panel + k * panel_stride + v * LANES, LANES);
            UNROLL
            for (int r = 0; r < rows; r++) sums[r * vectors + v] += left[r * stride + k * step] * weights;
        }
    }
}

/* The same, at most WIDE vectors, into memory. */
INLINE void accumulate(const int rows, const int vectors, real *to, long to_stride, const real *left, long stride,
                       long step, long depth, const real *panel, long panel_stride) {
    vec sums[8 * WIDE];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) sums[r * vectors + v] = load(to + r * to_stride + v * LANES, LANES);
    }
    multiply(rows, vectors, sums, left, stride, step, depth, panel, panel_stride);
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) store(to + r * to_stride + v * LANES, sums[r * vectors + v], LANES);
    }
}

/* The same for all rows. */
INLINE void accumulate_rows(const int vectors, long count, real *to, long to_stride, const real *left, long stride,
                            long step, long depth, const real *panel, long panel_stride) {
#define BLOCK(rows, r)                                                                                      \
    accumulate(rows, vectors, to + r * to_stride, to_stride, left + r * stride, stride, step, depth, panel, \
               panel_stride)
    FOR_ROWS(count, MOST_ROWS(vectors), BLOCK)
#undef BLOCK
}

static void accumulate_panel(long rows, real *to, long to_stride, const real *left, long stride, long step, long depth,
                             const real *panel, long panel_stride) {
    accumulate_rows(WIDE, rows, to, to_stride, left, stride, step, depth, panel, panel_stride);
}

static void accumulate_half(long rows, real *to, long to_stride, const real *left, long stride, long step, long depth,
                            const real *panel, long panel_stride) {
    accumulate_rows(WIDE / 2, rows, to, to_stride, left, stride, step, depth, panel, panel_stride);
}

/* The same for all columns, without those of the last panel's second half if there are none. Those of block b of WIDE
 * vectors are in the panel at right + b * panels_stride. */
static void accumulate_all(long rows, long columns, real *to, long to_stride, const real *left, long stride, long step,
                           long depth, const real *right, long panel_stride, long panels_stride) {
    for (; columns > 0; columns -= PANEL, to += PANEL, right += panels_stride)
        (columns > PANEL / 2 ? accumulate_panel : accumulate_half)(rows, to, to_stride, left, stride, step, depth,
                                                                   right, panel_stride);
}

/* ---- both directions ---- */

INLINE void before_step(const Layer *l, const int states, long row, long t, const real **before) {
    long at = row * l->steps + t;
    for (int s = 0; s < states; s++)
        before[s] = t == 0 || l->starts[at] ? l->stored[s] + row * l->stored_row + t * l->stored_step
                                            : l->states[s] + (at - 1) * l->hidden;
}

/* Copies what enters a step, the input and the first state, to a row of work space. */
INLINE void enter(const Layer *l, long row, long t, const real *before, real *to) {
    memcpy(to, l->x + (row * l->steps + t) * l->inputs, l->inputs * sizeof(real));
    memcpy(to + wide(l->inputs), before, l->hidden * sizeof(real));
}

/* ---- forwards ---- */

/* [rows of weights] to [columns][gates][LANES]: those of one block of units, zero where there are no more. */
static real *pack_block(const Layer *l, long gates, long unit, const real *weights, long columns, real *to) {
    long hidden = l->hidden, lanes = hidden - unit < LANES ? hidden - unit : LANES;
    if (weights == NULL || lanes < LANES) memset(to, 0, columns * gates * BYTES);
    for (long g = 0; weights != NULL && g < gates; g++)
        for (long lane = 0; lane < lanes; lane++) {
            const real *from = weights + (g * hidden + unit + lane) * columns;
            for (long k = 0; k < columns; k++) to[(k * gates + g) * LANES + lane] = from[k];
        }
    return to + columns * gates * LANES;
}

/* [blocks of hidden units][the two biases, then each input, then each unit of the state][gates][LANES] */
static real *pack_forward(const Layer *l, long gates) {
    long blocks = rounded_up(l->hidden, LANES) / LANES;
    real *packed = allocate(blocks * (2 + l->inputs + l->hidden) * gates * LANES), *to = packed;
    for (long unit = 0; packed != NULL && unit < l->hidden; unit += LANES) {
        to = pack_block(l, gates, unit, l->b_ih, 1, to);
        to = pack_block(l, gates, unit, l->b_hh, 1, to);
        to = pack_block(l, gates, unit, l->w_ih, l->inputs, to);
        to = pack_block(l, gates, unit, l->w_hh, l->hidden, to);
    }
    return packed;
}

INLINE void forward_block(const int rows, const int gates, const int memory, const int states, forward_maths *maths,
                          const Layer *l, long row, long t, long unit, const real *entering, long stride,
                          const real *(*before)[STATES], const real *panel) {
    const int split = memory - gates; /* final gates whose projections stay apart */
    long width = gates * LANES, n = l->hidden - unit;
    const real *h_panel = panel + (2 + l->inputs) * width;
    vec sums[8 * 4], apart[8];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int g = 0; g < gates; g++) {
            sums[r * gates + g] = load(panel + g * LANES, LANES);
            if (g < gates - split) sums[r * gates + g] += load(panel + width + g * LANES, LANES);
        }
    }
    multiply(rows, gates, sums, entering, stride, 1, l->inputs, panel + 2 * width, width);
    UNROLL
    for (int r = 0; split && r < rows; r++) {
        apart[r] = sums[r * gates + gates - 1];
        sums[r * gates + gates - 1] = load(panel + width + (gates - 1) * LANES, LANES);
    }
    multiply(rows, gates, sums, entering + wide(l->inputs), stride, 1, l->hidden, h_panel, width);
    UNROLL
    for (int r = 0; r < rows; r++) {
        long at = (row + r) * l->steps + t;
        const real *own_before[STATES];
        real *after[STATES], *kept = l->gates == NULL ? NULL : l->gates + at * memory * l->hidden + unit;
        for (int s = 0; s < states; s++) {
            own_before[s] = before[r][s] + unit;
            after[s] = l->states[s] + at * l->hidden + unit;
        }
        maths(sums + r * gates, apart + r, kept, l->hidden, n, own_before, after);
        if (kept != NULL && t + 1 < l->steps) fetch(kept + memory * l->hidden, memory, l->hidden);
    }
}

INLINE int forward_rows(const int gates, const int memory, const int states, forward_maths *maths, const Layer *l) {
    long hidden = l->hidden, stride = spread(wide(l->inputs) + hidden);
    const real *before[TILE][STATES];
    real *entering = allocate(TILE * stride);
    if (entering == NULL) return 1;
    for (long begin = l->begin; begin < l->end; begin += TILE) {
        long count = l->end - begin < TILE ? l->end - begin : TILE;
        for (long t = 0; t < l->steps; t++) {
            for (long r = 0; r < count; r++) {
                before_step(l, states, begin + r, t, before[r]);
                enter(l, begin + r, t, before[r][0], entering + r * stride);
            }
            const real *panel = l->packed[0];
            for (long unit = 0; unit < hidden; unit += LANES, panel += (2 + l->inputs + hidden) * gates * LANES) {
#define BLOCK(rows, r)                                                                                         \
    forward_block(rows, gates, memory, states, maths, l, begin + r, t, unit, entering + r * stride, stride, \
                  before + r, panel)
                FOR_ROWS(count, MOST_ROWS(gates), BLOCK)
#undef BLOCK
            }
        }
    }
    free(entering);
    return 0;
}

/* ---- backwards ---- */

/* Weights [rows, columns] to [panels of columns][rows][PANEL], beginning with row first. */
static real *pack_backward(const real *weights, long rows, long columns, long first) {
    real *packed = allocate(rows * wide(columns)), *to = packed;
    for (long column = 0; packed != NULL && column < columns; column += PANEL)
        for (long k = 0; k < rows; k++, to += PANEL) {
            long count = columns - column < PANEL ? columns - column : PANEL;
            memset(to, 0, PANEL * sizeof(real));
            memcpy(to, weights + (k + first) % rows * columns + column, count * sizeof(real));
        }
    return packed;
}

/* A thread's gradients of the weights, in rows of wide() columns in the order of grad_gates, and the sums of those. */
typedef struct {
    real *w_hh, *w_ih, *bias;
} Sums;

static long size_of_sums(const Layer *l, long gates, long memory) {
    return gates * l->hidden * (wide(l->hidden) + wide(l->inputs)) + spread(memory * l->hidden);
}

static Sums sums_at(const Layer *l, long gates, real *at) {
    real *w_ih = at + gates * l->hidden * wide(l->hidden);
    return (Sums){at, w_ih, w_ih + gates * l->hidden * wide(l->inputs)};
}

INLINE void backward_row(const int memory, const int states, backward_maths *maths, const Layer *l, long row, long t,
                         real *const *grads, real *grad_gates, real *entering) {
    long hidden = l->hidden, at = row * l->steps + t;
    const real *before[STATES];
    before_step(l, states, row, t, before);
    enter(l, row, t, before[0], entering);
    for (long unit = 0; unit < hidden; unit += LANES) {
        long n = hidden - unit;
        const real *own_before[STATES], *after[STATES];
        vec own[STATES];
        for (int s = 0; s < states; s++) {
            own_before[s] = before[s] + unit;
            after[s] = l->states[s] + at * hidden + unit;
            own[s] = load(grads[s] + unit, n);
            if (l->grad_states[s] != NULL) own[s] += load(l->grad_states[s] + at * hidden + unit, n);
        }
        maths(l->gates + at * memory * hidden + unit, hidden, n, own_before, after, own, grad_gates + unit);
        for (int s = 0; s < states; s++) store(grads[s] + unit, own[s], n);
        if (t > 0) { /* what the row reads next, while the other rows take this step */
            fetch(l->gates + (at - 1) * memory * hidden + unit, memory, hidden);
            if (l->grad_states[0] != NULL) fetch(l->grad_states[0] + (at - 1) * hidden + unit, 1, 0);
            if (t > 1) fetch(l->states[0] + (at - 2) * hidden + unit, 1, 0);
        }
    }
}

/* Adds to the gradients of the weights what some steps of rows give. */
static void backward_weights(const Layer *l, long gates, long memory, long steps, const real *grads, long stride,
                             const real *entering, long in_stride) {
    Sums sums = sums_at(l, gates, l->sums);
    long rows = gates * l->hidden, apart = (memory - gates) * l->hidden, inputs = wide(l->inputs);
    accumulate_all(rows, l->hidden, sums.w_hh, wide(l->hidden), grads, 1, stride, steps, entering + inputs, in_stride,
                   PANEL);
    accumulate_all(rows, l->inputs, sums.w_ih, inputs, grads + apart, 1, stride, steps, entering, in_stride, PANEL);
    for (long step = 0; step < steps; step++)
        for (long column = 0; column < memory * l->hidden; column += LANES) {
            vec grad = load(grads + step * stride + column, LANES);
            store(sums.bias + column, load(sums.bias + column, LANES) + grad, LANES);
        }
}

/* Ends a segment where the stored state entered. */
static void backward_start(const Layer *l, const int states, long row, long t, real *const *grads) {
    long at = row * l->steps + t, size = l->hidden * sizeof(real);
    int starts = t == 0 || l->starts[at];
    for (int s = 0; s < states; s++) {
        real *to = l->grad_stored[s] == NULL ? NULL : l->grad_stored[s] + at * l->hidden;
        if (to != NULL && starts) memcpy(to, grads[s], size);
        if (to != NULL && !starts) memset(to, 0, size);
        if (starts) memset(grads[s], 0, size);
    }
}

INLINE int backward_rows(const int gates, const int memory, const int states, backward_maths *maths, const Layer *l) {
    const long hidden = l->hidden, rows = gates * hidden, apart = memory * hidden - rows;
    const long width = wide(hidden), inputs = wide(l->inputs), stride = spread(memory * hidden);
    const long in_stride = spread(inputs + width);
    const long size = TILE * (states * width + inputs) + CHUNK * (stride + in_stride);
    real *work = allocate(size), *grads[TILE][STATES];
    if (work == NULL) return 1;
    real *grad_x = work + TILE * states * width, *grad_gates = grad_x + TILE * inputs;
    real *entering = grad_gates + CHUNK * stride;
    memset(work, 0, size * sizeof(real));
    for (long r = 0; r < TILE; r++)
        for (int s = 0; s < states; s++) grads[r][s] = work + (s * TILE + r) * width;
    for (long begin = l->begin; begin < l->end; begin += TILE) {
        long count = l->end - begin < TILE ? l->end - begin : TILE, kept = 0;
        for (long t = l->steps - 1; t >= 0; t--) {
            real *own = grad_gates + kept * stride;
            for (long r = 0; r < count; r++)
                backward_row(memory, states, maths, l, begin + r, t, grads[r], own + r * stride,
                             entering + (kept + r) * in_stride);
            if (t > 0 || l->grad_stored[0] != NULL)
                accumulate_all(count, hidden, work, width, own, stride, 1, rows, l->packed[0], PANEL, rows * PANEL);
            for (long r = 0; r < count; r++) backward_start(l, states, begin + r, t, grads[r]);
            if (l->grad_x != NULL) {
                memset(grad_x, 0, count * inputs * sizeof(real));
                accumulate_all(count, l->inputs, grad_x, inputs, own + apart, stride, 1, rows, l->packed[1], PANEL,
                               rows * PANEL);
                for (long r = 0; r < count; r++)
                    memcpy(l->grad_x + ((begin + r) * l->steps + t) * l->inputs, grad_x + r * inputs,
                           l->inputs * sizeof(real));
            }
            kept += count;
            if (t == 0 || kept + count > CHUNK) {
                backward_weights(l, gates, memory, kept, grad_gates, stride, entering, in_stride);
                kept = 0;
            }
        }
    }
    free(work);
    return 0;
}

/* Adds up the threads' gradients of the weights, and puts their rows in the weights' order. */
static void add_up(const Layer *l, long gates, long memory, long threads, real *all) {
    long hidden = l->hidden, rows = gates * hidden, apart = (memory - gates) * hidden;
    long size = size_of_sums(l, gates, memory);
    for (long p = 1; p < threads; p++)
        for (long k = 0; k < size; k++) all[k] += all[p * size + k];
    Sums sums = sums_at(l, gates, all);
    for (long k = 0; k < rows; k++) {
        long to = (k + rows - apart) % rows; /* the row of w_hh */
        memcpy(l->grad_w_hh + to * hidden, sums.w_hh + k * wide(hidden), hidden * sizeof(real));
        memcpy(l->grad_w_ih + k * l->inputs, sums.w_ih + k * wide(l->inputs), l->inputs * sizeof(real));
        if (l->grad_b_hh != NULL) l->grad_b_hh[to] = sums.bias[k];
        if (l->grad_b_ih != NULL) l->grad_b_ih[k] = sums.bias[k + apart];
    }
}

/* ---- threads and entry points ---- */

static void *gru_forward_rows(void *l) { return (void *)(long)forward_rows(3, 4, 1, gru_forward, l); }
static void *gru_backward_rows(void *l) { return (void *)(long)backward_rows(3, 4, 1, gru_backward, l); }
static void *lstm_forward_rows(void *l) { return (void *)(long)forward_rows(4, 4, 2, lstm_forward, l); }
static void *lstm_backward_rows(void *l) { return (void *)(long)backward_rows(4, 4, 2, lstm_backward, l); }

enum { MOST_THREADS = 256 };

static long threads_for(const Layer *l) {
    long threads = l->threads, most = l->rows < MOST_THREADS ? l->rows : MOST_THREADS;
    return threads < most ? threads : most > 0 ? most : 1;
}

/* Splits the rows between threads; returns 0, or 1 if memory ran out. What no thread can be started for runs here. */
static int run(void *(*rows_of)(void *), const Layer *whole, long threads, long sums) {
    Layer parts[MOST_THREADS];
    pthread_t running[MOST_THREADS];
    int is_running[MOST_THREADS] = {0}, failed = 0;
    for (long p = 0; p < threads; p++) {
        parts[p] = *whole;
        parts[p].sums += p * sums;
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

/* The C library returns what is larger to the system at once: asks for large pages, as each new one takes time. */
enum { RETURNED = 32 << 20, PAGE = 4096 };

static void use_large_pages(real *memory, long bytes) {
#ifdef MADV_HUGEPAGE
    uintptr_t from = ((uintptr_t)memory + PAGE - 1) / PAGE * PAGE;
    if (memory != NULL && bytes >= RETURNED) madvise((void *)from, bytes / PAGE * PAGE - PAGE, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

int forward(Layer *l) {
    use_large_pages(l->gates, l->rows * l->steps * 4 * l->hidden * sizeof(real));
    real *packed = pack_forward(l, l->cell == GRU ? 3 : 4);
    l->packed[0] = packed;
    void *(*rows_of)(void *) = l->cell == GRU ? gru_forward_rows : lstm_forward_rows;
    int failed = packed == NULL || run(rows_of, l, threads_for(l), 0);
    free(packed);
    return failed;
}

int backward(Layer *l) {
    long gates = l->cell == GRU ? 3 : 4, memory = 4, rows = gates * l->hidden, threads = threads_for(l);
    long size = size_of_sums(l, gates, memory);
    real *of_state = pack_backward(l->w_hh, rows, l->hidden, rows - (memory - gates) * l->hidden);
    real *of_input = pack_backward(l->w_ih, rows, l->inputs, 0);
    real *sums = allocate(threads * size);
    l->packed[0] = of_state, l->packed[1] = of_input, l->sums = sums;
    int failed = of_state == NULL || of_input == NULL || sums == NULL;
    if (!failed) {
        memset(sums, 0, threads * size * sizeof(real));
        failed = run(l->cell == GRU ? gru_backward_rows : lstm_backward_rows, l, threads, size);
        add_up(l, gates, memory, threads, sums);
    }
    free(sums);
    free(of_input);
    free(of_state);
    return failed;
}
