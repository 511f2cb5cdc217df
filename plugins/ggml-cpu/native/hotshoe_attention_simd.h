/* The kernels of hotshoe_attention.c for one instruction set. It is included once for each set, with these macros
 * defined:
 *   VL        floats of a vector
 *   ROWS      query rows of a tile: ROWS * 2 accumulators must fit into the registers
 *   DOT_ROWS  query rows whose scores for KEYS keys are computed at once: DOT_ROWS * 4 accumulators must fit
 *   TARGET    the function attribute that allows the instructions
 *   SUFFIX    of the set: NAME(x) is x with this suffix
 *   VMAX(a, b)              elementwise maximum; b where a or b is NaN
 *   SUM(v), MAX(v)          over the lanes
 *   SUM_CLASSES(p, a, b, c, d, x)  p[0..KEYS) = x times the scores of KEYS keys, from vectors with four lanes, one for
 *                           each class, for each of VL / 4 keys: a has the first keys, d the last ones
 *   LOAD_FOUR(p)            p[0..4), repeated in all lanes; p[0] if VL is 1
 *   FOUR_BY_KEY(x, key, at, is_f16)  reads VL elements of each of the keys key[0], key[1] and so on, VL / 4 of them (at
 *                           least one), `at` bytes behind their beginnings. x[u] gets elements 4 u to 4 u + 3 of each
 *   LOAD_PART(p, n, fill)   the first n floats at p, and `fill` in the other lanes
 *   LOAD_HALF(p)            VL half floats as floats. If it is not defined, keys, values and masks are F32 only. If it
 *                           is, cached_row of cached_rows.h converts the other types of keys and values
 * Vectors are the compiler's own (vector_size), so each operation below is one instruction of the set. */

#define W (2 * VL)             /* columns of a panel: a tile computes them at once */
#define KEYS (VL > 4 ? VL : 4) /* whose scores are computed at once without panels */

#include "vectors.h"

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

/* exp(x) for x <= 88, to 1 ulp; 0 below -87.3, where the result would be subnormal; NaN for NaN.
 * x = n ln 2 + r: adding 1.5 * 2^23 rounds to the integer n and leaves it in the low bits. P is from
 * Cephes' expf (Moshier). */
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

/* tanh(x) = x P(x^2) near 0, where 1 - 2 / (exp(2 |x|) + 1) cancels (Cephes' tanhf). */
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

/* VL numbers at p, floats or half floats, as floats. */
FN vf NAME(numbers)(const char * p, const int is_f16) {
#ifdef LOAD_HALF
    if (is_f16) {
        return LOAD_HALF((const uint16_t *) p);
    }
#endif
    (void) is_f16;
    return NAME(load)((const float *) p);
}

#include "hotshoe_attention_tiles.h"

/* out[n] = the first n numbers of a row of any type. n: whole blocks if the type has blocks. */
FN void NAME(floats)(float * out, const char * row, enum ggml_type type, int64_t n) {
#ifdef LOAD_HALF
    if (type == GGML_TYPE_F16) {
        const uint16_t * const halves = (const uint16_t *) row;
        int64_t i = 0;
        for (; i + VL <= n; i += VL) {
            NAME(store)(out + i, LOAD_HALF(halves + i));
        }
        if (i < n) {
            uint16_t tail[VL] = {0};
            memcpy(tail, halves + i, (n - i) * sizeof *tail);
            NAME(store_part)(out + i, LOAD_HALF(tail), n - i);
        }
        return;
    }
    if (type != GGML_TYPE_F32) {
        cached_row(out, row, type, n);
        return;
    }
#endif
    (void) type;
    memcpy(out, row, n * sizeof *out);
}

/* Whether tiles can read whole vectors of t's rows in place. */
static int NAME(is_readable_in_place)(const struct ggml_tensor * t) {
#ifdef LOAD_HALF
    if (t->type == GGML_TYPE_F16) {
        return t->ne[0] % VL == 0;
    }
#endif
    return t->type == GGML_TYPE_F32 && t->ne[0] % VL == 0;
}

/* The address of row j: that of cell cells[j], or j if cells is NULL. */
FN const char * NAME(row_at)(const char * rows, size_t stride, const int32_t * cells, int64_t j) {
    return rows + (cells != NULL ? cells[j] : j) * stride;
}

/* at[i] = the address of row i, up to n, and then of row n - 1 up to a multiple of KEYS. */
FN void NAME(addresses)(const char ** at, const char * rows, size_t stride, const int32_t * cells, int64_t n) {
    if (cells == NULL) {
        for (int64_t i = 0; i < n; ++i) {
            at[i] = rows + i * stride;
        }
    } else {
        for (int64_t i = 0; i < n; ++i) {
            at[i] = rows + cells[i] * stride;
        }
    }
    for (int64_t i = n; i % KEYS != 0; ++i) {
        at[i] = at[n - 1];
    }
}

/* Packs keys (cols, dim) into panels (ceil(cols / W), dim, W), with zeros beyond cols up to a multiple of VL. */
TARGET static void NAME(pack_keys)(float * out, const char * k, enum ggml_type type, size_t stride,
                                   const int32_t * cells, int64_t cols, int64_t dim) {
    const int64_t wide = (cols + VL - 1) / VL * VL;
#if VL > 1
    float unpacked[4][MAX_DIM];
    for (int64_t j = 0; j < wide; j += 4) {
        float * column = out + j / W * W * dim + j % W;
        const float * key[4];
        for (int i = 0; i < 4; ++i) {
            key[i] = zeros;
            if (j + i < cols) {
                const char * const row = NAME(row_at)(k, stride, cells, j + i);
                key[i] = type == GGML_TYPE_F32 ? (const float *) row : unpacked[i];
                if (type != GGML_TYPE_F32) {
                    NAME(floats)(unpacked[i], row, type, dim);
                }
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
            out[(j / W * dim + d) * W + j % W] = ((const float *) NAME(row_at)(k, stride, cells, j))[d];
        }
    }
#endif
}

/* Packs values (cols, dim) into panels (ceil(dim / W), cols, W), with zeros beyond dim. */
TARGET static void NAME(pack_values)(float * out, const char * v, enum ggml_type type, size_t stride,
                                     const int32_t * cells, int64_t cols, int64_t dim) {
    if (type != GGML_TYPE_F32 && type != GGML_TYPE_F16) {
        float row[MAX_DIM + W] = {0};
        for (int64_t j = 0; j < cols; ++j) {
            NAME(floats)(row, NAME(row_at)(v, stride, cells, j), type, dim);
            for (int64_t d = 0; d < dim; d += W) {
                memcpy(out + d * cols + j * W, row + d, W * sizeof *out);
            }
        }
        return;
    }
    for (int64_t d = 0; d < dim; d += W) {
        for (int64_t j = 0; j < cols; ++j, out += W) {
            const char * const values = NAME(row_at)(v, stride, cells, j) + d * (type == GGML_TYPE_F16 ? 2 : 4);
            if (d + W <= dim) {
                NAME(floats)(out, values, type, W);
            } else {
                NAME(floats)(out, values, type, dim - d);
                memset(out + (dim - d), 0, (W - (dim - d)) * sizeof *out);
            }
        }
    }
}

/* The keys that at least one of the rows sees, and their number in *n: a list in `index`, or NULL if these are all
 * keys. */
TARGET static const int32_t * NAME(visible)(int rows, const float * const * masks, int64_t cols, int32_t * index,
                                            int64_t * n) {
    float highest[MAX_STEP + VL];
    *n = cols;
    if (masks[0] == NULL) {
        return NULL;
    }
    vf lowest_negated = {0};
    for (int64_t c = 0; c < cols; c += VL) {
        vf all = NAME(splat)(-INFINITY);
        for (int r = 0; r < rows; ++r) {
            if (r == 0 || masks[r] != masks[r - 1]) {
                all = VMAX(all, c + VL > cols ? LOAD_PART(masks[r] + c, cols - c, 0.0f) : NAME(load)(masks[r] + c));
            }
        }
        NAME(store)(highest + c, all);
        lowest_negated = VMAX(lowest_negated, -all);
    }
    if (MAX(lowest_negated) < INFINITY) {
        return NULL;
    }
    *n = 0;
    for (int64_t c = 0; c < cols; ++c) {
        index[*n] = (int32_t) c;
        *n += highest[c] != -INFINITY;
    }
    return index;
}

/* out[i] = numbers[index[i]]. out and numbers may be the same. */
FN void NAME(gather)(float * out, const float * numbers, const int32_t * index, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        out[i] = numbers[index[i]];
    }
}

/* Turns the scores of a row into weights relative to exp(new maximum). Returns the factor for the earlier sums. */
FN float NAME(weigh)(float * s, int64_t cols, float softcap, const float * mask, float * highest, float * total) {
    vf top = NAME(splat)(*highest);
    for (int64_t c = 0; c < cols; c += VL) {
        vf x = c + VL > cols ? LOAD_PART(s + c, cols - c, 0.0f) : NAME(load)(s + c);
        if (softcap != 0.0f) {
            x = NAME(tanh)(x) * softcap;
        }
        if (c + VL > cols || mask != NULL) {
            const float * const mask_at = mask != NULL ? mask + c : zeros;
            const vf shift = c + VL > cols ? LOAD_PART(mask_at, cols - c, -INFINITY) : NAME(load)(mask_at);
            const vi hidden = MASK_LESS(shift, NAME(splat)(-3.0e38f)); /* also if the score is NaN */
            x = NAME(from_bits)((NAME(bits)(x + shift) & ~hidden) | (NAME(bits)(shift) & hidden));
        }
        NAME(store)(s + c, x);
        top = VMAX(top, x);
    }
    const float new_highest = MAX(top);
    /* If no key was seen yet: weights of 0, not exp(-inf + inf). */
    const float base = new_highest == -INFINITY ? 0.0f : new_highest;
    vf sum = {0};
    for (int64_t c = 0; c < cols; c += VL) {
        const vf p = NAME(exp)(NAME(load)(s + c) - base);
        NAME(store)(s + c, p);
        sum += p;
    }
    const float factor = *highest == new_highest ? 1.0f
                         : *highest == -INFINITY ? 0.0f
                                                 : MAX(NAME(exp)(NAME(splat)(*highest - base)));
    *total = *total * factor + SUM(sum);
    *highest = new_highest;
    return factor;
}

/* The mask of one query for the keys of a tile: floats, or NULL if it sees all of them. memory: room for one. */
FN const float * NAME(mask_of)(float * memory, const struct run * run, const struct visible_range * seen, int64_t m,
                               int64_t kv_head, int64_t row) {
    const struct job * const job = run->job;
    const int64_t width = seen->to - seen->from;
    if (seen->plain) {
        return NULL;
    }
    if (job->ranges != NULL) {
        const struct key_range range = keys_of(job, run->first_query + row / job->group);
        const int64_t from = range.from - m - seen->from, to = range.to - m - seen->from;
        const float slope = job->slopes != NULL ? job->slopes[kv_head * job->group + row % job->group] : 0.0f;
        for (int64_t c = 0; c < width; ++c) {
            memory[c] = c >= from && c < to ? slope * (float) (c - to + 1) : -INFINITY;
        }
        return memory;
    }
    const char * const mask = mask_row_of(run, m + seen->from, kv_head, row);
    if (job->mask->type == GGML_TYPE_F32) {
        return (const float *) mask;
    }
    NAME(floats)(memory, mask, job->mask->type, width);
    return memory;
}

/* Computes the tiles of one key/value head over at most `step` keys of the run's range, from m on. */
TARGET static void NAME(head)(struct run * run, int64_t m, int64_t kv_head) {
    const struct job * const job = run->job;
    const struct ggml_tensor * const q = job->q;
    const struct ggml_tensor * const k = job->k;
    const struct ggml_tensor * const v = job->v;
    const int64_t batch = run->batch, dim = q->ne[0], v_dim = v->ne[0];
    const int64_t dim_pad = (dim + VL - 1) / VL * VL, v_pad = (v_dim + W - 1) / W * W;
    const int64_t step = job->step, group = job->group;
    const int64_t first_key = run->visible_to_any.from, cols = run->visible_to_any.to - first_key;
    float * const keys = run->step_memory;
    float * const values = keys + dim_pad * step;
    float * const scores = values + v_pad * step;
    float * const float_masks = scores + ROWS * step;
    int32_t list[MAX_STEP + 1];
    const char * key_at[MAX_STEP + KEYS];

    /* The cells of keys and values from m + first_key on; NULL if k0 and v0 are the first ones, and so on. */
    const int32_t * const cells = job->cells != NULL ? job->cells + m + first_key : NULL;
    const char * const k0 = cached_row_of(k, batch, kv_head, cells != NULL ? 0 : m + first_key);
    const char * const v0 = cached_row_of(v, batch, kv_head, cells != NULL ? 0 : m + first_key);
    const int dots_only = run->seen_pairs < MIN_ROWS_TO_PACK * cols;
    const int keys_in_place = dots_only && NAME(is_readable_in_place)(k);
    const int values_in_place = dots_only && NAME(is_readable_in_place)(v);
    const char * const key_rows = keys_in_place ? k0 : (const char *) keys;
    const char * const value_rows = values_in_place ? v0 : (const char *) values;
    const size_t key_stride = keys_in_place ? k->nb[2] : dim_pad * sizeof(float);
    const size_t value_stride = values_in_place ? v->nb[2] : W * sizeof(float);
    if (!dots_only) {
        NAME(pack_keys)(keys, k0, k->type, k->nb[2], cells, cols, dim);
    } else if (!keys_in_place) {
        for (int64_t j = 0; j < cols; ++j) {
            float * const key = keys + j * dim_pad;
            NAME(floats)(key, NAME(row_at)(k0, k->nb[2], cells, j), k->type, dim);
            memset(key + dim, 0, (dim_pad - dim) * sizeof *key);
        }
    }
    run->unpacks_values = !values_in_place;
    struct run * prefetching = run; /* NULL after the first tile */
    int packed = values_in_place;
    for (int64_t tile = run->first; tile < run->last; ++tile) {
        const struct visible_range seen = run->visible[tile - run->first];
        if (seen.from == seen.to) {
            continue;
        }
        const int64_t key = seen.from - first_key; /* a multiple of CHUNK: panels begin there */
        const int64_t width = seen.to - seen.from;
        const int64_t row = first_row(run, tile);
        const int count = (int) (first_row(run, tile + 1) - row);
        const float *q_rows[ROWS], *weights[ROWS], *masks[ROWS];
        float *score_rows[ROWS], *out[ROWS], keep[ROWS], gain[ROWS];
        float * const top = run->highest + index_in_run(run, kv_head, row);
        float * const sum = run->total + index_in_run(run, kv_head, row);
        const int64_t in_run = tile_in_run(run, kv_head, tile);
        for (int r = 0; r < count; ++r) {
            const int64_t n = (row + r) / group, h = kv_head * group + (row + r) % group;
            const char * const query =
                (const char *) q->data + h * q->nb[1] + (run->first_query + n) * q->nb[2] + batch * q->nb[3];
            q_rows[r] = (const float *) query;
            if (dots_only && dim != dim_pad) {
                float * const copy = run->queries + r * dim_pad;
                memcpy(copy, query, dim * sizeof *copy);
                memset(copy + dim, 0, (dim_pad - dim) * sizeof *copy);
                q_rows[r] = copy;
            }
            out[r] = run->begun_before[in_run] ? run->part_sums + index_in_run(run, kv_head, row + r) * v_dim
                                               : result_of(run, kv_head, row + r);
            const int is_same =
                r > 0 && (row + r) % group > 0 && job->slopes == NULL && (job->mask == NULL || job->mask->ne[2] == 1);
            masks[r] = is_same ? masks[r - 1] : NAME(mask_of)(float_masks + r * step, run, &seen, m, kv_head, row + r);
            score_rows[r] = scores + r * step;
            weights[r] = score_rows[r];
            if (!run->begun[in_run]) {
                top[r] = -INFINITY;
                sum[r] = 0.0f;
            }
        }
        /* Values that no row sees are left out, not multiplied by 0: another sequence may have overflowed to inf or NaN
         * there. Ranges hide keys only at the ends, and each key between has a place of its own, so that a row adds its
         * weights in the same order whatever the others see. */
        int64_t n_seen = width;
        const int32_t * const visible = job->ranges == NULL ? NAME(visible)(count, masks, width, list, &n_seen) : NULL;
        const int32_t * const of_tile = cells != NULL ? cells + key : visible;
        if (dots_only) {
            const int is_f16 = keys_in_place && k->type == GGML_TYPE_F16, passes = (count + DOT_ROWS - 1) / DOT_ROWS;
            const int32_t * const of_keys = keys_in_place ? of_tile : visible;
            const char * const from = keys_in_place && cells != NULL ? key_rows : key_rows + key * key_stride;
            NAME(addresses)(key_at, from, key_stride, of_keys, n_seen);
            for (int p = 0; p < passes; ++p) {
                const int r = count * p / passes, rows = count * (p + 1) / passes - r;
                const NAME(dots_fn) dots = NAME(dot_tiles)[is_f16][rows];
                dots(q_rows + r, dim_pad, key_at, n_seen, score_rows + r, job->scale, p == 0 ? prefetching : NULL);
            }
            const float * last_whole = NULL; /* the mask of the row before */
            for (int r = 0; r < count && visible != NULL; ++r) {
                const float * const whole = masks[r];
                if (whole == last_whole) {
                    masks[r] = masks[r - 1];
                } else {
                    NAME(gather)(float_masks + r * step, whole, visible, n_seen);
                    masks[r] = float_masks + r * step;
                }
                last_whole = whole;
            }
        } else {
            NAME(score_tiles)[count](q_rows, dim, keys + key * dim, width, score_rows, job->scale);
        }
        const int64_t skipped = seen.first - seen.from; /* keys before the first that a row sees */
        for (int r = 0; r < count; ++r) {
            keep[r] = NAME(weigh)(score_rows[r], dots_only ? n_seen : width, job->softcap, masks[r], top + r, sum + r);
            gain[r] = run->is_one_step ? gain_of(top[r], sum[r], sink_of(job, kv_head, row + r)) : 1.0f;
            if (!dots_only && visible != NULL) {
                NAME(gather)(score_rows[r], score_rows[r], visible, n_seen);
            }
            weights[r] += skipped;
        }
        if (!packed) {
            NAME(pack_values)(values, v0, v->type, v->nb[2], cells, cols, v_dim);
            packed = 1;
        }
        const float * const old = run->begun[in_run] ? keep : NULL;
        const int64_t n = n_seen - skipped;
        if (values_in_place) {
            const NAME(rows_fn) rows = NAME(tiles_in_place)[v->type == GGML_TYPE_F16][count];
            rows(weights, n, cells != NULL ? of_tile + skipped : visible,
                 cells != NULL ? value_rows : value_rows + (key + skipped) * value_stride, value_stride, out, v_dim,
                 old, gain, prefetching);
        } else {
            const NAME(tile_fn) sums = NAME(tiles)[count];
            sums(weights, n, visible, value_rows + (key + skipped) * value_stride, value_stride,
                 cols * W * sizeof(float), out, v_dim, old, gain);
        }
        run->begun[in_run] = 1;
        prefetching = NULL;
    }
}

TARGET static void NAME(layer_row)(float * y, const float * x, const float * weight, const float * bias, int64_t n,
                                   float eps) {
    vf sum = {0}, squares = {0};
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t n_lanes = n - i;
        sum += n_lanes >= VL ? NAME(load)(x + i) : LOAD_PART(x + i, n_lanes, 0.0f);
    }
    const float mean = SUM(sum) / (float) n;
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t n_lanes = n - i;
        const vf v = (n_lanes >= VL ? NAME(load)(x + i) : LOAD_PART(x + i, n_lanes, mean)) - mean;
        squares += v * v;
    }
    const float scale = 1.0f / sqrtf(SUM(squares) / (float) n + eps);
    for (int64_t i = 0; i < n; i += VL) {
        const int64_t n_lanes = n - i;
        vf v = ((n_lanes >= VL ? NAME(load)(x + i) : LOAD_PART(x + i, n_lanes, mean)) - mean) * scale;
        if (weight != NULL) {
            v *= n_lanes >= VL ? NAME(load)(weight + i) : LOAD_PART(weight + i, n_lanes, 0.0f);
        }
        if (bias != NULL) {
            v += n_lanes >= VL ? NAME(load)(bias + i) : LOAD_PART(bias + i, n_lanes, 0.0f);
        }
        if (n_lanes >= VL) {
            NAME(store)(y + i, v);
        } else {
            NAME(store_part)(y + i, v, n_lanes);
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
#undef KEYS
#undef vf
#undef vi
#undef FN
#undef MASK_LESS
#undef SUFFIX
#undef VL
#undef ROWS
#undef DOT_ROWS
#undef TARGET
#undef VMAX
#undef SUM
#undef SUM_CLASSES
#undef LOAD_FOUR
#undef FOUR_BY_KEY
#undef MAX
#undef LOAD_PART
#undef LOAD_HALF
