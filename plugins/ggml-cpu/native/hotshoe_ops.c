/* Ops that ggml-cpu lacks, or computes in another way than NumPy: arithmetic element by element, the maximum of rows,
 * products with few rows, and the order of rows.
 *
 * Reading order: hotshoe_ops.h (the ops), tensor_rows.h (rows and shares of threads), this file. */
#include "hotshoe_ops.h"

#include <math.h>
#include <string.h>

#include "tensor_rows.h"

/* --- arithmetic as NumPy's ------------------------------------------------------------------------- */

static float float_mod(float a, float b) {
    const float rem = fmodf(a, b);
    if (rem != 0.0f) { /* true for NaN too */
        return (b < 0.0f) != (rem < 0.0f) ? rem + b : rem;
    }
    return copysignf(0.0f, b);
}

static float float_floor_divide(float a, float b) {
    if (b == 0.0f) {
        return a / b;
    }
    const float rem = fmodf(a, b);
    float quotient = (a - rem) / b;
    if (rem != 0.0f && (b < 0.0f) != (rem < 0.0f)) {
        quotient -= 1.0f;
    }
    if (quotient == 0.0f) {
        return copysignf(0.0f, a / b);
    }
    const float whole = floorf(quotient);
    return quotient - whole > 0.5f ? whole + 1.0f : whole;
}

/* Unsigned numbers wrap around; an overflow of signed numbers is undefined. */
static int32_t wrap_add(int32_t a, int32_t b) { return (int32_t) ((uint32_t) a + (uint32_t) b); }
static int32_t wrap_sub(int32_t a, int32_t b) { return (int32_t) ((uint32_t) a - (uint32_t) b); }
static int32_t wrap_mul(int32_t a, int32_t b) { return (int32_t) ((uint32_t) a * (uint32_t) b); }

static int32_t int_floor_divide(int32_t a, int32_t b) {
    if (b == 0 || b == -1) {
        return b == 0 ? 0 : wrap_sub(0, a);
    }
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static int32_t int_mod(int32_t a, int32_t b) {
    if (b == 0 || b == -1) {
        return 0;
    }
    const int32_t rem = a % b;
    return rem != 0 && (rem < 0) != (b < 0) ? rem + b : rem;
}

#define MINIMUM(x, y) ((x) != (x) || (x) < (y) ? (x) : (y))
#define MAXIMUM(x, y) ((x) != (x) || (x) > (y) ? (x) : (y))

/* n elements of a row of dst, and where the elements of the sources begin. */
struct operands {
    char * dst;
    const char * src[3];
    int64_t stride[3]; /* bytes from one element of a source to the next; 0 if it is broadcast */
    int64_t n;
};

#define EACH2(Out, In, expression)                                 \
    for (int64_t i = 0; i < p->n; ++i) {                           \
        const In x = *(const In *) (p->src[0] + i * p->stride[0]); \
        const In y = *(const In *) (p->src[1] + i * p->stride[1]); \
        ((Out *) p->dst)[i] = (expression);                        \
    }                                                              \
    break

#define EACH1(Out, In, expression)                                 \
    for (int64_t i = 0; i < p->n; ++i) {                           \
        const In x = *(const In *) (p->src[0] + i * p->stride[0]); \
        ((Out *) p->dst)[i] = (expression);                        \
    }                                                              \
    break

static void floats(const struct operands * p, int32_t op) {
    switch (op) {
        case HOTSHOE_EQUAL: EACH2(float, float, x == y ? 1.0f : 0.0f);
        case HOTSHOE_LESS: EACH2(float, float, x < y ? 1.0f : 0.0f);
        case HOTSHOE_LESS_EQUAL: EACH2(float, float, x <= y ? 1.0f : 0.0f);
        case HOTSHOE_MINIMUM: EACH2(float, float, MINIMUM(x, y));
        case HOTSHOE_MAXIMUM: EACH2(float, float, MAXIMUM(x, y));
        case HOTSHOE_MOD: EACH2(float, float, float_mod(x, y));
        case HOTSHOE_FLOOR_DIVIDE: EACH2(float, float, float_floor_divide(x, y));
        case HOTSHOE_ROUND: EACH1(float, float, rintf(x));
        case HOTSHOE_SIGN: EACH1(float, float, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x != x ? x : 0.0f);
    }
}

static void integers(const struct operands * p, const struct hotshoe_pointwise_params * params) {
    const int32_t low = params->low, high = params->high;
    switch (params->op) {
        case HOTSHOE_EQUAL: EACH2(float, int32_t, x == y ? 1.0f : 0.0f);
        case HOTSHOE_LESS: EACH2(float, int32_t, x < y ? 1.0f : 0.0f);
        case HOTSHOE_LESS_EQUAL: EACH2(float, int32_t, x <= y ? 1.0f : 0.0f);
        case HOTSHOE_MINIMUM: EACH2(int32_t, int32_t, x < y ? x : y);
        case HOTSHOE_MAXIMUM: EACH2(int32_t, int32_t, x > y ? x : y);
        case HOTSHOE_MOD: EACH2(int32_t, int32_t, int_mod(x, y));
        case HOTSHOE_FLOOR_DIVIDE: EACH2(int32_t, int32_t, int_floor_divide(x, y));
        case HOTSHOE_ADD: EACH2(int32_t, int32_t, wrap_add(x, y));
        case HOTSHOE_SUB: EACH2(int32_t, int32_t, wrap_sub(x, y));
        case HOTSHOE_MUL: EACH2(int32_t, int32_t, wrap_mul(x, y));
        case HOTSHOE_ABS: EACH1(int32_t, int32_t, x < 0 ? wrap_sub(0, x) : x);
        case HOTSHOE_CLAMP: EACH1(int32_t, int32_t, (x < low) ? low : ((x > high) ? high : x));
    }
}

static void choose(const struct operands * p, int by_float) {
    for (int64_t i = 0; i < p->n; ++i) {
        const char * c = p->src[0] + i * p->stride[0];
        const int holds = by_float ? *(const float *) c != 0.0f : *(const int32_t *) c != 0;
        const char * taken = holds ? p->src[1] + i * p->stride[1] : p->src[2] + i * p->stride[2];
        memcpy(p->dst + 4 * i, taken, 4);
    }
}

void hotshoe_pointwise(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_pointwise_params * params = userdata;
    const struct rectangle part = share_of_rows(n_rows(dst), dst->ne[0], ith, nth);
    const int64_t column = part.first_column;
    for (int64_t row = part.first_row; row < part.last_row; ++row) {
        struct operands p = {.dst = (char *) dst->data + (row * dst->ne[0] + column) * 4,
                             .n = part.last_column - column};
        for (int i = 0; i < 3 && dst->src[i] != NULL; ++i) {
            p.stride[i] = dst->src[i]->ne[0] == 1 ? 0 : (int64_t) dst->src[i]->nb[0];
            p.src[i] = row_like(dst->src[i], dst, row) + column * p.stride[i];
        }
        if (params->op == HOTSHOE_WHERE) {
            choose(&p, dst->src[0]->type == GGML_TYPE_F32);
        } else if (dst->src[0]->type == GGML_TYPE_F32) {
            floats(&p, params->op);
        } else {
            integers(&p, params);
        }
    }
}

/* --- rows ------------------------------------------------------------------------------------------ */

/* The first index of the largest of n numbers. It compares pieces of 256 in vectors, and searches a piece only if the
 * piece has a larger number or NaN. */
static int64_t first_largest(const float * x, int64_t n) {
    enum { PIECE = 256 };
    int64_t best = 0;
    for (int64_t start = 0; start < n; start += PIECE) {
        const int64_t stop = min64(start + PIECE, n);
        const float largest = x[best];
        int any = 0;
        for (int64_t i = start; i < stop; ++i) {
            any |= !(x[i] <= largest); /* true for NaN too */
        }
        for (int64_t i = start; i < stop && any; ++i) {
            if (isnan(x[i])) {
                return i;
            }
            best = x[i] > x[best] ? i : best;
        }
    }
    return best;
}

void hotshoe_row_max(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) userdata;
    const struct ggml_tensor * a = dst->src[0];
    int64_t first, last;
    share(n_rows(a), ith, nth, &first, &last);
    for (int64_t r = first; r < last; ++r) {
        const float * x = (const float *) row_like(a, a, r);
        float largest = x[0];
        int unordered = 0;
        for (int64_t i = 0; i < a->ne[0]; ++i) {
            largest = x[i] > largest ? x[i] : largest;
            unordered |= x[i] != x[i];
        }
        ((float *) dst->data)[r] = unordered ? NAN : largest;
    }
}

void hotshoe_row_argmax(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    (void) userdata;
    const struct ggml_tensor * a = dst->src[0];
    int64_t first, last;
    share(n_rows(a), ith, nth, &first, &last);
    for (int64_t r = first; r < last; ++r) {
        ((int32_t *) dst->data)[r] = (int32_t) first_largest((const float *) row_like(a, a, r), a->ne[0]);
    }
}

void hotshoe_few_rows(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    enum { PIECE = 128 }; /* columns whose sums stay in the L1 cache */
    (void) userdata;
    const struct ggml_tensor *a = dst->src[0], *b = dst->src[1];
    const int64_t n = dst->ne[0], k = a->ne[0], pieces = ceil_div(n, PIECE);
    int64_t first, last;
    share(n_rows(dst) * pieces, ith, nth, &first, &last);
    for (int64_t item = first; item < last; ++item) {
        const int64_t r = item / pieces, column = item % pieces * PIECE;
        const int64_t columns = min64(n - column, PIECE);
        const float * x = (const float *) row_like(a, dst, r);
        const char * row = row_like(b, dst, r - r % dst->ne[1]) + column * 4; /* the first row of src[1] */
        float sums[PIECE] = {0};
        for (int64_t i = 0; i < k; ++i, row += b->nb[1]) {
            const float * y = (const float *) row;
            for (int64_t j = 0; j < columns; ++j) {
                sums[j] += x[i] * y[j];
            }
        }
        memcpy((float *) dst->data + r * n + column, sums, (size_t) columns * sizeof(float));
    }
}

/* The order of a row: by value (sign -1: descending), NaNs last, equal numbers by index. */
struct ranking {
    const float * x;
    float sign;
};

/* Whether element i comes before element j. */
static inline int before(const struct ranking * ranking, int32_t i, int32_t j) {
    const float a = ranking->sign * ranking->x[i], b = ranking->sign * ranking->x[j];
    if (a < b) {
        return 1;
    }
    if (a > b) {
        return 0;
    }
    const int a_is_nan = a != a, b_is_nan = b != b;
    return a_is_nan != b_is_nan ? b_is_nan : i < j;
}

static void insertion_sort(const struct ranking * ranking, int32_t * order, int64_t n) {
    for (int64_t i = 1; i < n; ++i) {
        const int32_t moved = order[i];
        int64_t j = i;
        for (; j > 0 && before(ranking, moved, order[j - 1]); --j) {
            order[j] = order[j - 1];
        }
        order[j] = moved;
    }
}

static void sift_down(const struct ranking * ranking, int32_t * order, int64_t root, int64_t n) {
    const int32_t moved = order[root];
    for (int64_t child = 2 * root + 1; child < n; child = 2 * root + 1) {
        child += child + 1 < n && before(ranking, order[child], order[child + 1]);
        if (!before(ranking, moved, order[child])) {
            break;
        }
        order[root] = order[child];
        root = child;
    }
    order[root] = moved;
}

static void swap(int32_t * a, int32_t * b) {
    const int32_t kept = *a;
    *a = *b;
    *b = kept;
}

static void heapify(const struct ranking * ranking, int32_t * order, int64_t n) {
    for (int64_t i = n / 2; i-- > 0;) {
        sift_down(ranking, order, i, n);
    }
}

static void sort_heap(const struct ranking * ranking, int32_t * order, int64_t n) {
    for (int64_t i = n; i-- > 1;) {
        swap(&order[0], &order[i]);
        sift_down(ranking, order, 0, i);
    }
}

/* Quicksort by the middle of three numbers, and heapsort where that goes deeper than twice the logarithm (Musser
 * 1997). */
static void sort(const struct ranking * ranking, int32_t * order, int64_t n, int depth) {
    while (n > 24) {
        if (depth-- == 0) {
            heapify(ranking, order, n);
            sort_heap(ranking, order, n);
            return;
        }
        int32_t * middle = &order[n / 2];
        if (before(ranking, *middle, order[0])) {
            swap(middle, &order[0]);
        }
        if (before(ranking, order[n - 1], *middle)) {
            swap(middle, &order[n - 1]);
            if (before(ranking, *middle, order[0])) {
                swap(middle, &order[0]);
            }
        }
        /* order[0] comes before the pivot and order[n - 1] after it: neither scan leaves the row. */
        const int32_t pivot = *middle;
        int64_t i = 0, j = n - 1;
        while (i <= j) {
            while (before(ranking, order[i], pivot)) {
                ++i;
            }
            while (before(ranking, pivot, order[j])) {
                --j;
            }
            if (i <= j) {
                swap(&order[i++], &order[j--]);
            }
        }
        sort(ranking, order, j + 1, depth);
        order += i;
        n -= i;
    }
    insertion_sort(ranking, order, n);
}

/* The first k of n: each other index is compared with the last of them. Up to 32 are kept sorted, more in a heap. */
static void select_first(const struct ranking * ranking, int32_t * order, int64_t n, int32_t k) {
    const int sorted = k <= 32;
    for (int32_t i = 0; i < k; ++i) {
        order[i] = i;
    }
    if (sorted) {
        insertion_sort(ranking, order, k);
    } else {
        heapify(ranking, order, k);
    }
    for (int32_t i = k; i < n; ++i) {
        if (sorted) {
            int32_t j = k;
            for (; j > 0 && before(ranking, i, order[j - 1]); --j) {
                if (j < k) {
                    order[j] = order[j - 1];
                }
            }
            if (j < k) {
                order[j] = i;
            }
        } else if (before(ranking, i, order[0])) {
            order[0] = i;
            sift_down(ranking, order, 0, k);
        }
    }
    if (!sorted) {
        sort_heap(ranking, order, k);
    }
}

void hotshoe_row_order(struct ggml_tensor * dst, int ith, int nth, void * userdata) {
    const struct hotshoe_order_params * params = userdata;
    const struct ggml_tensor * a = dst->src[0];
    const int64_t n = a->ne[0];
    int depth = 0;
    for (int64_t left = n; left > 1; left /= 2) {
        depth += 2;
    }
    int64_t first, last;
    share(n_rows(a), ith, nth, &first, &last);
    for (int64_t r = first; r < last; ++r) {
        const struct ranking ranking = {(const float *) row_like(a, a, r), params->descending ? -1.0f : 1.0f};
        int32_t * order = (int32_t *) dst->data + r * params->k;
        if (params->k < n) {
            select_first(&ranking, order, n, params->k);
            continue;
        }
        for (int32_t i = 0; i < n; ++i) {
            order[i] = i;
        }
        sort(&ranking, order, n, depth);
    }
}
