/* The kernels of hotshoe_attention.c for one instruction set: included once for each, with
 *   VL       floats a vector
 *   ROWS     query rows a tile: ROWS * 2 accumulators must fit the registers
 *   TARGET   the function attribute that allows the instructions
 *   NAME(x)  x with the set's suffix
 *   VMAX(a, b)             elementwise; b where one is NaN
 *   SUM(v), MAX(v)         over the lanes
 *   LOAD_PART(p, n, rest)  the first n floats of p, and `rest` in the other lanes
 *   LOAD_HALF(p)           VL half floats as floats; not defined: keys, values and masks are F32. Where it is defined,
 *                          cached_row of cached_rows.h makes floats of the other types of keys and values
 * Vectors are the compiler's own (vector_size), so that each operation below is one instruction of the set. */

#define W (2 * VL) /* columns a panel: what a tile computes at once */

#if VL > 1
typedef float NAME(vf) __attribute__((vector_size(VL * 4)));
typedef int32_t NAME(vi) __attribute__((vector_size(VL * 4)));
#else
typedef float NAME(vf);
typedef int32_t NAME(vi);
#endif
#define vf NAME(vf)
#define vi NAME(vi)
#define FN TARGET ALWAYS_INLINE

FN vf NAME(load)(const float * p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

FN void NAME(store)(float * p, vf v) { memcpy(p, &v, sizeof v); }

FN vf NAME(splat)(float x) { return x - (vf) {0}; }

FN void NAME(store_part)(float * p, vf v, int64_t n) {
    float lanes[VL];
    NAME(store)(lanes, v);
    for (int64_t i = 0; i < n; ++i) {
        p[i] = lanes[i];
    }
}

FN vi NAME(bits)(vf v) {
    vi b;
    memcpy(&b, &v, sizeof b);
    return b;
}

FN vf NAME(from_bits)(vi b) {
    vf v;
    memcpy(&v, &b, sizeof v);
    return v;
}

#if VL > 1
#define MASK_LESS(a, b) ((a) < (b))
#else
#define MASK_LESS(a, b) (-((a) < (b)))
#endif

/* exp(x) for x <= 88, to 1 ulp; 0 below -87.3, where the result would be subnormal, and NaN of NaN.
 * x = n ln 2 + r: adding 1.5 * 2^23 rounds to the integer n and leaves it in the low bits. P is Cephes' expf (Moshier). */
FN vf NAME(exp)(vf x) {
    const float lowest = -87.3f;
    const vi tiny = MASK_LESS(x, NAME(splat)(lowest));
    const vf t = VMAX(NAME(splat)(lowest), x);
    const vf shifted = t * 1.44269504088896341f + 12582912.0f;
    const vf n = shifted - 12582912.0f;
    const vf r = t - n * 0.693359375f - n * -2.12194440e-4f;
    vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return NAME(from_bits)((NAME(bits)(p) + (NAME(bits)(shifted) << 23)) & ~tiny);
}

/* tanh(x) = x P(x^2) near 0, where 1 - 2 / (exp(2 |x|) + 1) has cancelled (Cephes' tanhf). */
FN vf NAME(tanh)(vf x) {
    const vi sign = NAME(bits)(x) & INT32_MIN;
    const vf a = NAME(from_bits)(NAME(bits)(x) & INT32_MAX);
    const vf capped = -VMAX(NAME(splat)(-20.0f), -a * 2.0f);
    const vf large = 1.0f - 2.0f / (NAME(exp)(capped) + 1.0f);
    const vf z = x * x;
    vf p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    p = p * z * a + a;
    const vi near = MASK_LESS(a, NAME(splat)(0.625f));
    return NAME(from_bits)((NAME(bits)(p) & near) | (NAME(bits)(large) & ~near) | sign);
}

/* out[r][0..cols) = (out[r] * keep[r] + sum_i a[r][i] * b[at[i]][...]) * gain[r], for r < rows; keep NULL: out holds nothing
 * yet; at NULL: 0, 1, 2 and so on. b is in panels of W columns, `panel` floats apart, rows of a panel ldb apart; lanes up to
 * VL past cols can be read. */
FN void NAME(columns)(const int rows, const int vectors, const float * const * a, int64_t n, const int32_t * at,
                      const float * b, int64_t ldb, float * const * out, int64_t from, int64_t part, const float * keep,
                      const float * gain) {
    vf acc[ROWS][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
        for (int c = 0; c < vectors; ++c) {
            acc[r][c] = (vf) {0};
            if (keep != NULL) {
                const float * old = out[r] + from + c * VL;
                acc[r][c] = (part == VL ? NAME(load)(old) : LOAD_PART(old, part, 0.0f)) * keep[r];
            }
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        const float * const x0 = b + (at != NULL ? at[i] : i) * ldb;
        vf row[2];
#pragma GCC unroll 2
        for (int c = 0; c < vectors; ++c) {
            row[c] = NAME(load)(x0 + c * VL);
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            const vf x = NAME(splat)(a[r][i]);
#pragma GCC unroll 2
            for (int c = 0; c < vectors; ++c) {
                acc[r][c] += x * row[c];
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 2
        for (int c = 0; c < vectors; ++c) {
            float * to = out[r] + from + c * VL;
            if (part == VL) {
                NAME(store)(to, acc[r][c] * gain[r]);
            } else {
                NAME(store_part)(to, acc[r][c] * gain[r], part);
            }
        }
    }
}

FN void NAME(tile)(const int rows, const float * const * a, int64_t n, const int32_t * at, const float * b, int64_t ldb,
                   int64_t panel, float * const * out, int64_t cols, const float * keep, const float * gain) {
    int64_t from = 0;
    for (; from + W <= cols; from += W, b += panel) {
        NAME(columns)(rows, 2, a, n, at, b, ldb, out, from, VL, keep, gain);
    }
    if (from + VL <= cols) {
        NAME(columns)(rows, 1, a, n, at, b, ldb, out, from, VL, keep, gain);
        from += VL;
        b += VL;
    }
    if (from < cols) {
        NAME(columns)(rows, 1, a, n, at, b, ldb, out, from, cols - from, keep, gain);
    }
}

/* Scores of few rows for the keys at[0], at[1] and so on (NULL: all), without a transposed copy of the keys, which are
 * `stride` floats apart. */
FN void NAME(dots)(const int rows, const float * const * q, int64_t dim, const int32_t * at, const float * keys,
                   int64_t stride, int64_t cols, float * const * out, const float * gain, const struct ahead * ahead) {
    for (int64_t j = 0; j < cols; j += 2) {
        soon(ahead->values + j * ahead->value_stride, ahead->value_stride, ahead->value_size);
        soon(ahead->keys + j * ahead->key_stride, ahead->key_stride, ahead->key_size);
        const int64_t next = j + 1 < cols ? j + 1 : j;
        const float * const key[2] = {keys + (at != NULL ? at[j] : j) * stride, keys + (at != NULL ? at[next] : next) * stride};
        vf acc[ROWS][2];
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            acc[r][0] = acc[r][1] = (vf) {0};
        }
        int64_t d = 0;
        for (; d + VL <= dim; d += VL) {
            const vf x[2] = {NAME(load)(key[0] + d), NAME(load)(key[1] + d)};
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r) {
                const vf y = NAME(load)(q[r] + d);
                acc[r][0] += y * x[0];
                acc[r][1] += y * x[1];
            }
        }
        if (d < dim) {
            const vf x[2] = {LOAD_PART(key[0] + d, dim - d, 0.0f), LOAD_PART(key[1] + d, dim - d, 0.0f)};
#pragma GCC unroll 16
            for (int r = 0; r < rows; ++r) {
                const vf y = LOAD_PART(q[r] + d, dim - d, 0.0f);
                acc[r][0] += y * x[0];
                acc[r][1] += y * x[1];
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; ++r) {
            out[r][j] = SUM(acc[r][0]) * gain[r];
            out[r][j + 1] = SUM(acc[r][1]) * gain[r]; /* an odd last one: rows of scores have room for more */
        }
    }
}

/* One function for each number of rows, so that the accumulators have names and stay in registers. */
typedef void (*NAME(tile_fn))(const float * const *, int64_t, const int32_t *, const float *, int64_t, int64_t,
                              float * const *, int64_t, const float *, const float *);
typedef void (*NAME(dots_fn))(const float * const *, int64_t, const int32_t *, const float *, int64_t, int64_t,
                              float * const *, const float *, const struct ahead *);
#define TILE(rows)                                                                                                       \
    TARGET static void NAME(tile_##rows)(const float * const * a, int64_t n, const int32_t * at, const float * b,        \
                                         int64_t ldb, int64_t panel, float * const * out, int64_t cols,                  \
                                         const float * keep, const float * gain) {                                       \
        NAME(tile)(rows, a, n, at, b, ldb, panel, out, cols, keep, gain);                                                \
    }                                                                                                                    \
    TARGET static void NAME(dots_##rows)(const float * const * q, int64_t dim, const int32_t * at, const float * keys,   \
                                         int64_t stride, int64_t cols, float * const * out, const float * gain,          \
                                         const struct ahead * ahead) {                                                   \
        NAME(dots)(rows, q, dim, at, keys, stride, cols, out, gain, ahead);                                              \
    }
TILE(1) TILE(2) TILE(3) TILE(4)
#if ROWS > 4
TILE(5) TILE(6)
#endif
#if ROWS > 6
TILE(7) TILE(8)
#endif
#if ROWS > 6
#define UP_TO_ROWS(f) {NULL, NAME(f##_1), NAME(f##_2), NAME(f##_3), NAME(f##_4), NAME(f##_5), NAME(f##_6), NAME(f##_7), NAME(f##_8)}
#elif ROWS > 4
#define UP_TO_ROWS(f) {NULL, NAME(f##_1), NAME(f##_2), NAME(f##_3), NAME(f##_4), NAME(f##_5), NAME(f##_6)}
#else
#define UP_TO_ROWS(f) {NULL, NAME(f##_1), NAME(f##_2), NAME(f##_3), NAME(f##_4)}
#endif
static const NAME(tile_fn) NAME(tiles)[ROWS + 1] = UP_TO_ROWS(tile);
static const NAME(dots_fn) NAME(few_tiles)[ROWS + 1] = UP_TO_ROWS(dots);

/* n floats at `to` from the beginning of a row of any type; whole blocks, where the type has them. */
FN void NAME(floats)(float * to, const char * from, enum ggml_type type, int64_t n) {
#ifdef LOAD_HALF
    if (type == GGML_TYPE_F16) {
        const uint16_t * const halves = (const uint16_t *) from;
        int64_t i = 0;
        for (; i + VL <= n; i += VL) {
            NAME(store)(to + i, LOAD_HALF(halves + i));
        }
        if (i < n) {
            uint16_t rest[VL] = {0};
            memcpy(rest, halves + i, (n - i) * sizeof *rest);
            NAME(store_part)(to + i, LOAD_HALF(rest), n - i);
        }
        return;
    }
    if (type != GGML_TYPE_F32) {
        cached_row(to, from, type, n);
        return;
    }
#endif
    (void) type;
    memcpy(to, from, n * sizeof *to);
}

/* keys (cols, dim) to panels (ceil(cols / W), dim, W), zeros beyond cols up to a multiple of VL. */
TARGET static void NAME(pack_keys)(float * to, const char * k, enum ggml_type type, size_t stride, int64_t cols, int64_t dim) {
    const int64_t wide = (cols + VL - 1) / VL * VL;
#if VL > 1
    float unpacked[4][MAX_DIM];
    for (int64_t j = 0; j < wide; j += 4) {
        float * column = to + j / W * W * dim + j % W;
        const float * key[4];
        for (int i = 0; i < 4; ++i) {
            key[i] = j + i < cols ? (const float *) (k + (j + i) * stride) : zeros;
            if (type != GGML_TYPE_F32 && j + i < cols) {
                NAME(floats)(unpacked[i], k + (j + i) * stride, type, dim);
                key[i] = unpacked[i];
            }
        }
        int64_t d = 0;
        for (; d + 4 <= dim; d += 4) {
            TRANSPOSE4(column + d * W, W, key[0] + d, key[1] + d, key[2] + d, key[3] + d);
        }
        for (; d < dim; ++d) {
            for (int i = 0; i < 4; ++i) {
                column[d * W + i] = key[i][d];
            }
        }
    }
#else
    (void) type;
    for (int64_t j = 0; j < wide; ++j) {
        for (int64_t d = 0; d < dim; ++d) {
            to[(j / W * dim + d) * W + j % W] = ((const float *) (k + j * stride))[d];
        }
    }
#endif
}

/* values (cols, dim) to panels (ceil(dim / W), cols, W), zeros beyond dim. */
TARGET static void NAME(pack_values)(float * to, const char * v, enum ggml_type type, size_t stride, int64_t cols, int64_t dim) {
    if (type != GGML_TYPE_F32 && type != GGML_TYPE_F16) {
        float row[MAX_DIM + W] = {0};
        for (int64_t j = 0; j < cols; ++j, v += stride) {
            NAME(floats)(row, v, type, dim);
            for (int64_t d = 0; d < dim; d += W) {
                memcpy(to + d * cols + j * W, row + d, W * sizeof *to);
            }
        }
        return;
    }
    for (int64_t d = 0; d < dim; d += W) {
        const char * from = v + d * (type == GGML_TYPE_F16 ? 2 : 4);
        for (int64_t j = 0; j < cols; ++j, to += W, from += stride) {
            if (d + W <= dim) {
                NAME(floats)(to, from, type, W);
            } else {
                NAME(floats)(to, from, type, dim - d);
                memset(to + (dim - d), 0, (W - (dim - d)) * sizeof *to);
            }
        }
    }
}

/* The keys that one of the rows sees, and how many: NULL and all of them, or a list in `at`. */
TARGET static const int32_t * NAME(visible)(int rows, const float * const * masks, int64_t cols, int32_t * at, int64_t * n) {
    float most[SCRATCH_FLOATS / CHUNK + VL];
    *n = cols;
    if (masks[0] == NULL) {
        return NULL;
    }
    vf least = {0};
    for (int64_t c = 0; c < cols; c += VL) {
        vf all = NAME(splat)(-INFINITY);
        for (int r = 0; r < rows; ++r) {
            if (r == 0 || masks[r] != masks[r - 1]) {
                all = VMAX(all, c + VL > cols ? LOAD_PART(masks[r] + c, cols - c, 0.0f) : NAME(load)(masks[r] + c));
            }
        }
        NAME(store)(most + c, all);
        least = VMAX(least, -all);
    }
    if (MAX(least) < INFINITY) {
        return NULL;
    }
    *n = 0;
    for (int64_t c = 0; c < cols; ++c) {
        at[*n] = (int32_t) c;
        *n += most[c] != -INFINITY;
    }
    return at;
}

/* to[i] = from[at[i]]; they may be the same. */
FN void NAME(gather)(float * to, const float * from, const int32_t * at, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        to[i] = from[at[i]];
    }
}

/* Scores of a row become weights relative to exp(new maximum). Gives the factor for what was summed before. */
FN float NAME(weigh)(float * s, int64_t cols, float softcap, const float * mask, float * most, float * total) {
    vf top = NAME(splat)(*most);
    for (int64_t c = 0; c < cols; c += VL) {
        vf x = c + VL > cols ? LOAD_PART(s + c, cols - c, 0.0f) : NAME(load)(s + c);
        if (softcap != 0.0f) {
            x = NAME(tanh)(x) * softcap;
        }
        if (c + VL > cols || mask != NULL) {
            const float * const from = mask != NULL ? mask + c : zeros;
            const vf shift = c + VL > cols ? LOAD_PART(from, cols - c, -INFINITY) : NAME(load)(from);
            const vi hidden = MASK_LESS(shift, NAME(splat)(-3.0e38f)); /* whatever the score is: it may be NaN */
            x = NAME(from_bits)((NAME(bits)(x + shift) & ~hidden) | (NAME(bits)(shift) & hidden));
        }
        NAME(store)(s + c, x);
        top = VMAX(top, x);
    }
    const float now = MAX(top);
    const float base = now == -INFINITY ? 0.0f : now; /* nothing seen yet: weights of 0, not exp(-inf + inf) */
    vf sum = {0};
    for (int64_t c = 0; c < cols; c += VL) {
        const vf p = NAME(exp)(NAME(load)(s + c) - base);
        NAME(store)(s + c, p);
        sum += p;
    }
    const float factor = *most == now ? 1.0f : *most == -INFINITY ? 0.0f : MAX(NAME(exp)(NAME(splat)(*most - base)));
    *total = *total * factor + SUM(sum);
    *most = now;
    return factor;
}

/* Row blocks [first, last) of one key/value head, over the keys of a part. */
TARGET static void NAME(head)(const struct job * job, struct part part, int64_t kv_head, int64_t first, int64_t last) {
    const struct ggml_tensor * const q = job->q;
    const struct ggml_tensor * const k = job->k;
    const struct ggml_tensor * const v = job->v;
    struct ggml_tensor * const dst = job->dst;
    const int64_t batch = part.batch, dim = q->ne[0], v_dim = v->ne[0];
    const int64_t v_pad = (v_dim + W - 1) / W * W;
    const int64_t step = job->step;
    const int64_t base = first_row(job, first);
    float * const keys = scratch;
    float * const values = keys + dim * step;
    float * const scores = values + v_pad * step;
    float * const shown = scores + ROWS * step; /* masks of half floats as floats */
    float most[MAX_BLOCKS * ROWS], total[MAX_BLOCKS * ROWS];
    char started[MAX_BLOCKS] = {0};
    struct span spans[MAX_BLOCKS];
    int32_t list[SCRATCH_FLOATS / CHUNK]; /* more than step */
    const int at_once = part.to - part.from <= step; /* one block of keys: rows are divided by their sum as they are written */

    for (int64_t m = part.from; m < part.to; m += step) {
        struct span all = {step, 0, 0, 0};
        int64_t seen_pairs = 0; /* of rows and keys */
        for (int64_t block = first; block < last; ++block) {
            const struct span own = seen(job, batch, kv_head, block, m, part.to - m < step ? part.to - m : step);
            spans[block - first] = own;
            if (own.from < own.to) {
                all.from = own.from < all.from ? own.from : all.from;
                all.to = own.to > all.to ? own.to : all.to;
                seen_pairs += own.count * (first_row(job, block + 1) - first_row(job, block));
            }
        }
        if (all.from >= all.to) {
            continue;
        }
        const int64_t cols = all.to - all.from;
        const char * const k0 = (const char *) k->data + kv_head * k->nb[1] + (m + all.from) * k->nb[2] + batch * k->nb[3];
        const char * const v0 = (const char *) v->data + kv_head * v->nb[1] + (m + all.from) * v->nb[2] + batch * v->nb[3];
        const int few = seen_pairs < FEW_ROWS * cols;
        const int keys_in_place = few && k->type == GGML_TYPE_F32;
        const int values_in_place = few && v->type == GGML_TYPE_F32 && v_dim % VL == 0;
        const int64_t key_stride = keys_in_place ? (int64_t) (k->nb[2] / 4) : dim;
        const int64_t value_stride = values_in_place ? (int64_t) (v->nb[2] / 4) : W;
        if (!few) {
            NAME(pack_keys)(keys, k0, k->type, k->nb[2], cols, dim);
        } else if (!keys_in_place) {
            for (int64_t j = 0; j < cols; ++j) {
                NAME(floats)(keys + j * dim, k0 + j * k->nb[2], k->type, dim);
            }
        }
        const struct ahead ahead = {v0, k0 + (step - all.from) * k->nb[2], v->nb[2], k->nb[2], row_bytes(v), row_bytes(k)};
        int packed = values_in_place;
        for (int64_t block = first; block < last; ++block) {
            if (spans[block - first].from == spans[block - first].to) {
                continue;
            }
            const int64_t at = spans[block - first].from - all.from; /* a multiple of CHUNK: panels begin there */
            const int64_t width = spans[block - first].to - spans[block - first].from;
            const int64_t row = first_row(job, block);
            const int count = (int) (first_row(job, block + 1) - row);
            const float *q_rows[ROWS], *weights[ROWS], *masks[ROWS];
            float *score_rows[ROWS], *out[ROWS], keep[ROWS], gain[ROWS];
            const char * last_mask = NULL;
            int64_t n = row / job->group, h = kv_head * job->group + row % job->group;
            for (int r = 0; r < count; ++r) {
                q_rows[r] = (const float *) ((const char *) q->data + h * q->nb[1] + n * q->nb[2] + batch * q->nb[3]);
                out[r] = (float *) ((char *) dst->data + h * dst->nb[1] + n * dst->nb[2] + part.at * dst->nb[3]);
                const char * const mask = spans[block - first].plain ? NULL : mask_row(job->mask, m + all.from + at, n, h, batch);
                masks[r] = (const float *) mask;
                if (mask != NULL && job->mask->type == GGML_TYPE_F16) {
                    masks[r] = mask == last_mask ? masks[r - 1] : shown + r * step;
                    if (mask != last_mask) {
                        NAME(floats)(shown + r * step, mask, GGML_TYPE_F16, width);
                    }
                    last_mask = mask;
                }
                score_rows[r] = scores + r * step;
                weights[r] = score_rows[r];
                gain[r] = job->scale;
                if (++h == (kv_head + 1) * job->group) {
                    h -= job->group;
                    ++n;
                }
            }
            float * const top = most + (row - base);
            float * const sum = total + (row - base);
            const int begun = started[block - first];
            if (!begun) {
                for (int r = 0; r < count; ++r) {
                    const float * const sink = job->sinks != NULL ? job->sinks + kv_head * job->group + (row + r) % job->group : NULL;
                    top[r] = sink != NULL ? *sink : -INFINITY;
                    sum[r] = sink != NULL ? 1.0f : 0.0f;
                }
                started[block - first] = 1;
            }
            /* Values of hidden keys are left out, not multiplied by 0: they may be what another sequence overflowed to. */
            int64_t n_seen;
            const int32_t * const which = NAME(visible)(count, masks, width, list, &n_seen);
            if (few) {
                const float * const from = keys_in_place ? (const float *) k0 : keys;
                NAME(few_tiles)[count](q_rows, dim, which, from + at * key_stride, key_stride, n_seen, score_rows, gain, &ahead);
                const float * whole = NULL; /* of the row before */
                for (int r = 0; r < count && which != NULL; ++r) {
                    const float * const own = masks[r];
                    if (own == whole) {
                        masks[r] = masks[r - 1];
                    } else {
                        NAME(gather)(shown + r * step, own, which, n_seen);
                        masks[r] = shown + r * step;
                    }
                    whole = own;
                }
            } else {
                NAME(tiles)[count](q_rows, dim, NULL, keys + at * dim, W, dim * W, score_rows, (width + VL - 1) / VL * VL, NULL, gain);
            }
            for (int r = 0; r < count; ++r) {
                keep[r] = NAME(weigh)(score_rows[r], few ? n_seen : width, job->softcap, masks[r], top + r, sum + r);
                gain[r] = at_once ? 1.0f / sum[r] : 1.0f;
                if (!few && which != NULL) {
                    NAME(gather)(score_rows[r], score_rows[r], which, n_seen);
                }
            }
            if (!packed) {
                NAME(pack_values)(values, v0, v->type, v->nb[2], cols, v_dim);
                packed = 1;
            }
            const float * const from = values_in_place ? (const float *) v0 : values;
            NAME(tiles)[count](weights, n_seen, which, from + at * value_stride, value_stride, values_in_place ? W : cols * W,
                               out, v_dim, begun ? keep : NULL, gain);
        }
    }
    for (int64_t block = first; block < last; ++block) {
        const int begun = started[block - first];
        if (begun && at_once && job->parts_of_keys == 1) {
            continue;
        }
        for (int64_t row = first_row(job, block); row < first_row(job, block + 1); ++row) {
            const int64_t n = row / job->group, h = kv_head * job->group + row % job->group;
            float * const out = (float *) ((char *) dst->data + h * dst->nb[1] + n * dst->nb[2] + part.at * dst->nb[3]);
            const float nothing = job->sinks != NULL || job->parts_of_keys > 1 ? 0.0f : NAN;
            const float gain = begun && !at_once ? 1.0f / total[row - base] : 1.0f;
            for (int64_t d = 0; d < v_dim; ++d) {
                out[d] = begun ? out[d] * gain : nothing;
            }
            if (job->parts_of_keys > 1) {
                out[v_dim] = begun ? most[row - base] : -INFINITY;
                out[v_dim + 1] = begun ? total[row - base] : 0.0f;
            }
        }
    }
}

TARGET static void NAME(layer_row)(float * y, const float * x, const float * weight, const float * bias, int64_t n,
                                   float eps) {
    vf sum = {0}, squares = {0};
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t part = n - i;
        sum += part >= VL ? NAME(load)(x + i) : LOAD_PART(x + i, part, 0.0f);
    }
    const float mean = SUM(sum) / (float) n;
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t part = n - i;
        const vf v = (part >= VL ? NAME(load)(x + i) : LOAD_PART(x + i, part, mean)) - mean;
        squares += v * v;
    }
    const float scale = 1.0f / sqrtf(SUM(squares) / (float) n + eps);
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t part = n - i;
        vf v = ((part >= VL ? NAME(load)(x + i) : LOAD_PART(x + i, part, mean)) - mean) * scale;
        if (weight != NULL) {
            v *= part >= VL ? NAME(load)(weight + i) : LOAD_PART(weight + i, part, 0.0f);
        }
        if (bias != NULL) {
            v += part >= VL ? NAME(load)(bias + i) : LOAD_PART(bias + i, part, 0.0f);
        }
        if (part >= VL) {
            NAME(store)(y + i, v);
        } else {
            NAME(store_part)(y + i, v, part);
        }
    }
}

TARGET static void NAME(rms_row)(float * y, const float * x, const float * weight, int64_t n, float eps) {
    vf squares = {0};
    for (int64_t i = 0; i < n; i += VL) {
        const vf v = n - i >= VL ? NAME(load)(x + i) : LOAD_PART(x + i, n - i, 0.0f);
        squares += v * v;
    }
    const float scale = 1.0f / sqrtf(SUM(squares) / (float) n + eps);
    for (int64_t i = 0; i < n; ++i) {
        y[i] = x[i] * scale * (weight != NULL ? weight[i] : 1.0f);
    }
}

static const struct kernels NAME(kernels) = {NAME(head), NAME(layer_row), NAME(rms_row), ROWS, W};

#undef W
#undef vf
#undef vi
#undef FN
#undef TILE
#undef UP_TO_ROWS
#undef MASK_LESS
