/* The recurrence s[t] = a[t] s[t-1] + b[t] for batches of rows with resets, forwards and backwards, in real and in
 * complex numbers. It follows kernel.c in one compilation.
 *
 * A complex number is a pair of reals: a state is one plane of real numbers, or two, of real and imaginary parts. Each
 * number of a belongs to `repeat` neighbouring numbers of the state.
 */

/* Values [rows, steps, planes, width] are contiguous but for those with strides; what is not wanted is NULL. */
typedef struct {
    long rows, steps, planes, width, repeat;
    long a_row, a_step, stored_row, stored_step; /* strides */
    const real *a;                               /* [rows, steps, planes, width / repeat] */
    const real *b, *stored;
    const unsigned char *starts;                 /* [rows, steps], 1 where the stored state enters */
    real *states;                                /* after each step */
    const real *grad;                            /* of the states */
    real *grad_a, *grad_b;
    real *grad_stored;                           /* zero except at starts */
    real *carried;                               /* a state of work space */
} Recurrence;

/* s = a p + b */
INLINE void advance(long planes, long width, long repeat, const real *restrict a, const real *restrict b,
                    const real *restrict p, real *restrict s) {
    long count = width / repeat;
    for (long g = 0; g < count; g++)
        for (long n = g * repeat; n < (g + 1) * repeat; n++) {
            if (planes == 1) s[n] = a[g] * p[n] + b[n];
            else {
                s[n] = a[g] * p[n] - a[g + count] * p[n + width] + b[n];
                s[n + width] = a[g] * p[n + width] + a[g + count] * p[n] + b[n + width];
            }
        }
}

/* d += carried; grad_a = the sum of d conj(p); carried = conj(a) d */
INLINE void retreat(long planes, long width, long repeat, const real *restrict a, const real *restrict p,
                    const real *restrict grad, real *restrict d, real *restrict grad_a, real *restrict carried) {
    long count = width / repeat;
    for (long g = 0; g < count; g++) {
        real re = 0, im = 0;
        for (long n = g * repeat; n < (g + 1) * repeat; n++) {
            real x = grad[n] + carried[n];
            d[n] = x;
            if (planes == 1) {
                re += x * p[n];
                carried[n] = a[g] * x;
            } else {
                real y = grad[n + width] + carried[n + width];
                d[n + width] = y;
                re += x * p[n] + y * p[n + width];
                im += y * p[n] - x * p[n + width];
                carried[n] = a[g] * x + a[g + count] * y;
                carried[n + width] = a[g] * y - a[g + count] * x;
            }
        }
        grad_a[g] = re;
        if (planes == 2) grad_a[g + count] = im;
    }
}

INLINE const real *entering(const Recurrence *r, long row, long t) {
    long size = r->planes * r->width;
    if (t == 0 || r->starts[row * r->steps + t]) return r->stored + row * r->stored_row + t * r->stored_step;
    return r->states + (row * r->steps + t - 1) * size;
}

INLINE void scan_forward(const Recurrence *r, long row, long planes, long repeat) {
    long size = planes * r->width;
    for (long t = 0; t < r->steps; t++) {
        long at = (row * r->steps + t) * size;
        advance(planes, r->width, repeat, r->a + row * r->a_row + t * r->a_step, r->b + at, entering(r, row, t),
                r->states + at);
    }
}

INLINE void scan_backward(const Recurrence *r, long row, long planes, long repeat) {
    long size = planes * r->width, count = size / repeat;
    real *carried = r->carried;
    memset(carried, 0, size * sizeof(real));
    for (long t = r->steps - 1; t >= 0; t--) {
        long step = row * r->steps + t, at = step * size;
        int start = t == 0 || r->starts[step];
        retreat(planes, r->width, repeat, r->a + row * r->a_row + t * r->a_step, entering(r, row, t), r->grad + at,
                r->grad_b + at, r->grad_a + step * count, carried);
        if (r->grad_stored != NULL) {
            if (start) memcpy(r->grad_stored + at, carried, size * sizeof(real));
            else memset(r->grad_stored + at, 0, size * sizeof(real));
        }
        if (start) memset(carried, 0, size * sizeof(real));
    }
}

/* The number of planes and the commonest repeat are constants, so that the innermost loops become vectors. */
#define EACH_ROW(of, r)                                                     \
    for (long row = 0; row < r->rows; row++) {                              \
        if (r->planes == 1 && r->repeat == 1) of(r, row, 1, 1);             \
        else if (r->planes == 1) of(r, row, 1, r->repeat);                  \
        else if (r->repeat == 1) of(r, row, 2, 1);                          \
        else of(r, row, 2, r->repeat);                                      \
    }

void recurrence_forward(const Recurrence *r) { EACH_ROW(scan_forward, r) }
void recurrence_backward(const Recurrence *r) { EACH_ROW(scan_backward, r) }
