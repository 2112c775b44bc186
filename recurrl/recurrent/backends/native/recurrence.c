/* The recurrence s[t] = a[t] s[t-1] + b[t] for batches of rows with resets, forwards and backwards, in real and in
 * complex numbers. It follows kernel.c in one compilation.
 *
 * A complex number is a pair of reals: a state is one plane of real numbers, or two, of real and imaginary parts.
 */

/* Values [rows, steps, planes, width] are contiguous but for those with strides; what is not wanted is NULL. */
typedef struct {
    long rows, steps, planes, width;
    long a_row, a_step, stored_row, stored_step; /* strides */
    real *carried;                               /* a state of work space */
    real *states;                                /* after each step */
    const real *a;                               /* [rows, steps, planes, width] */
    const real *stored;
    const unsigned char *starts;                 /* [rows, steps], 1 where the stored state enters */
    const real *incoming;                        /* b; backwards, the gradient of the states */
    real *grad_a, *grad_b;
    real *grad_stored;                           /* zero except at starts */
} Recurrence;

/* s = a p + b */
INLINE void advance(long planes, long width, const real *restrict a, const real *restrict b, const real *restrict p,
                    real *restrict s) {
    for (long n = 0, m = width; n < width; n++, m++) {
        if (planes == 1) s[n] = a[n] * p[n] + b[n];
        else {
            s[n] = a[n] * p[n] - a[m] * p[m] + b[n];
            s[m] = a[n] * p[m] + a[m] * p[n] + b[m];
        }
    }
}

/* d += carried; grad_a = d conj(p); carried = conj(a) d */
INLINE void retreat(long planes, long width, const real *restrict a, const real *restrict p, const real *restrict grad,
                    real *restrict d, real *restrict grad_a, real *restrict carried) {
    for (long n = 0, m = width; n < width; n++, m++) {
        real x = grad[n] + carried[n];
        d[n] = x;
        if (planes == 1) {
            grad_a[n] = x * p[n];
            carried[n] = a[n] * x;
        } else {
            real y = grad[m] + carried[m];
            d[m] = y;
            grad_a[n] = x * p[n] + y * p[m];
            grad_a[m] = y * p[n] - x * p[m];
            carried[n] = a[n] * x + a[m] * y;
            carried[m] = a[n] * y - a[m] * x;
        }
    }
}

INLINE const real *entering(const Recurrence *r, long row, long t) {
    long size = r->planes * r->width;
    if (t == 0 || r->starts[row * r->steps + t]) return r->stored + row * r->stored_row + t * r->stored_step;
    return r->states + (row * r->steps + t - 1) * size;
}

INLINE void scan_forward(const Recurrence *r, long row, long planes) {
    long size = planes * r->width;
    for (long t = 0; t < r->steps; t++) {
        long at = (row * r->steps + t) * size;
        advance(planes, r->width, r->a + row * r->a_row + t * r->a_step, r->incoming + at,
                entering(r, row, t), r->states + at);
    }
}

INLINE void scan_backward(const Recurrence *r, long row, long planes) {
    long size = planes * r->width;
    real *carried = r->carried;
    memset(carried, 0, size * sizeof(real));
    for (long t = r->steps - 1; t >= 0; t--) {
        long step = row * r->steps + t, at = step * size;
        int start = t == 0 || r->starts[step];
        retreat(planes, r->width, r->a + row * r->a_row + t * r->a_step, entering(r, row, t), r->incoming + at,
                r->grad_b + at, r->grad_a + at, carried);
        if (r->grad_stored != NULL) {
            if (start) memcpy(r->grad_stored + at, carried, size * sizeof(real));
            else memset(r->grad_stored + at, 0, size * sizeof(real));
        }
        if (start) memset(carried, 0, size * sizeof(real));
    }
}

/* The number of planes is a constant in each call, so that the innermost loops become vectors. */
int recurrence_forward(const Recurrence *r) {
    for (long row = 0; row < r->rows; row++)
        if (r->planes == 1) scan_forward(r, row, 1);
        else scan_forward(r, row, 2);
    return 0;
}

int recurrence_backward(const Recurrence *r) {
    for (long row = 0; row < r->rows; row++)
        if (r->planes == 1) scan_backward(r, row, 1);
        else scan_backward(r, row, 2);
    return 0;
}

/* ---- memories: S' = decay S + key e, where e is the value or, by the delta rule, beta (value - decay S key) ---- */

/* Values [rows, steps, heads, ...] are contiguous but for those with strides; what is not wanted is NULL. */
typedef struct {
    long rows, steps, heads, keys, values;
    long stored_row, stored_step;                                    /* strides */
    real *work;                                                      /* a memory and three values */
    const real *stored;                                              /* [.., keys, values] */
    real *states;                                                    /* after each step */
    const real *query, *key, *value, *decay, *beta;                /* the last two are one number each */
    const unsigned char *starts;
    real *read;                                                      /* by the query */
    const real *grad_read, *grad_states;
    real *grad_query, *grad_key, *grad_value, *grad_decay, *grad_beta, *grad_stored;
} Memories;

INLINE real dot(long n, const real *x, const real *y) {
    real total = 0;
    _Pragma("omp simd reduction(+ : total)")
    for (long k = 0; k < n; k++) total += x[k] * y[k];
    return total;
}

/* y += sum of x[j] S[j], a row for each key */
INLINE void add_rows(long keys, long values, const real *x, const real *S, real *restrict y) {
    for (long j = 0; j < keys; j++)
        for (long n = 0; n < values; n++) y[n] += x[j] * S[j * values + n];
}

INLINE const real *memory_before(const Memories *m, long row, long t, long head) {
    long size = m->keys * m->values, step = row * m->steps + t;
    if (t == 0 || m->starts[step]) return m->stored + row * m->stored_row + t * m->stored_step + head * size;
    return m->states + ((step - 1) * m->heads + head) * size;
}

/* What enters the memory. Leaves what the key read in `found`. */
INLINE void entering_value(const Memories *m, long at, const real *before, real *found, real *e) {
    long values = m->values;
    memset(found, 0, values * sizeof(real));
    if (m->beta != NULL) add_rows(m->keys, values, m->key + at * m->keys, before, found);
    for (long n = 0; n < values; n++) {
        real value = m->value[at * values + n];
        e[n] = m->beta == NULL ? value : m->beta[at] * (value - m->decay[at] * found[n]);
    }
}

int memories_forward(const Memories *m) {
    long keys = m->keys, values = m->values, size = keys * values;
    real *found = m->work, *e = m->work + values;
    for (long row = 0; row < m->rows; row++)
        for (long head = 0; head < m->heads; head++)
            for (long t = 0; t < m->steps; t++) {
                long at = (row * m->steps + t) * m->heads + head;
                const real *before = memory_before(m, row, t, head), *k = m->key + at * keys;
                real *restrict after = m->states + at * size, decay = m->decay[at];
                entering_value(m, at, before, found, e);
                for (long j = 0; j < keys; j++)
                    for (long n = 0; n < values; n++) after[j * values + n] = decay * before[j * values + n] + k[j] * e[n];
                memset(m->read + at * values, 0, values * sizeof(real));
                add_rows(keys, values, m->query + at * keys, after, m->read + at * values);
            }
    return 0;
}

int memories_backward(const Memories *m) {
    long keys = m->keys, values = m->values, size = keys * values;
    real *found = m->work, *e = found + values, *grad_e = e + values, *grad = grad_e + values;
    for (long row = 0; row < m->rows; row++)
        for (long head = 0; head < m->heads; head++) {
            memset(grad, 0, size * sizeof(real)); /* of the memory after the step */
            for (long t = m->steps - 1; t >= 0; t--) {
                long step = row * m->steps + t, at = step * m->heads + head;
                int start = t == 0 || m->starts[step];
                const real *before = memory_before(m, row, t, head), *after = m->states + at * size;
                const real *k = m->key + at * keys, *q = m->query + at * keys, *grad_read = m->grad_read + at * values;
                real decay = m->decay[at], grad_decay = 0;
                entering_value(m, at, before, found, e);
                memset(grad_e, 0, values * sizeof(real));
                for (long j = 0; j < keys; j++) {
                    real *restrict g = grad + j * values;
                    if (m->grad_states != NULL)
                        for (long n = 0; n < values; n++) g[n] += m->grad_states[at * size + j * values + n];
                    for (long n = 0; n < values; n++) g[n] += q[j] * grad_read[n];
                    for (long n = 0; n < values; n++) grad_e[n] += k[j] * g[n];
                    m->grad_query[at * keys + j] = dot(values, after + j * values, grad_read);
                    m->grad_key[at * keys + j] = dot(values, g, e);
                    grad_decay += dot(values, g, before + j * values);
                    for (long n = 0; n < values; n++) g[n] *= decay;
                }
                real *grad_value = m->grad_value + at * values;
                memcpy(grad_value, grad_e, values * sizeof(real));
                if (m->beta != NULL) {
                    real beta = m->beta[at], grad_beta = 0;
                    for (long n = 0; n < values; n++) {
                        grad_beta += grad_e[n] * (m->value[at * values + n] - decay * found[n]);
                        grad_value[n] = beta * grad_e[n];
                        grad_decay -= grad_value[n] * found[n];
                        grad_e[n] = -decay * grad_value[n]; /* of what the key read */
                    }
                    m->grad_beta[at] = grad_beta;
                    for (long j = 0; j < keys; j++) {
                        m->grad_key[at * keys + j] += dot(values, before + j * values, grad_e);
                        for (long n = 0; n < values; n++) grad[j * values + n] += k[j] * grad_e[n];
                    }
                }
                m->grad_decay[at] = grad_decay;
                if (m->grad_stored != NULL) {
                    if (start) memcpy(m->grad_stored + at * size, grad, size * sizeof(real));
                    else memset(m->grad_stored + at * size, 0, size * sizeof(real));
                }
                if (start) memset(grad, 0, size * sizeof(real));
            }
        }
    return 0;
}
