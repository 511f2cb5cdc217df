/* The kernels of hotshoe_attention.c for one instruction set. It is included once for each set, with these macros
 * defined:
 *   VL        floats of a vector
 *   ROWS      query rows of a tile: ROWS * 2 accumulators must fit into the registers
 *   DOT_ROWS  query rows whose scores for 4 keys are computed at once: DOT_ROWS * 4 accumulators must fit
 *   TARGET    the function attribute that allows the instructions
 *   SUFFIX    of the set: NAME(x) is x with this suffix
 *   VMAX(a, b)              elementwise maximum; b where a or b is NaN
 *   SUM(v), MAX(v)          over the lanes
 *   SUM4(p, a, b, c, d, x)  p[0..4) = the sums of four vectors, times x
 *   LOAD_PART(p, n, fill)   the first n floats at p, and `fill` in the other lanes
 *   LOAD_HALF(p)            VL half floats as floats. If it is not defined, keys, values and masks are F32 only. If it
 *                           is, cached_row of cached_rows.h converts the other types of keys and values
 * Vectors are the compiler's own (vector_size), so each operation below is one instruction of the set. */

#define W (2 * VL) /* columns of a panel: a tile computes them at once */

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
    return t->type == GGML_TYPE_F32;
}

/* Packs keys (cols, dim) into panels (ceil(cols / W), dim, W), with zeros beyond cols up to a multiple of VL. */
TARGET static void NAME(pack_keys)(float * out, const char * k, enum ggml_type type, size_t stride, int64_t cols,
                                   int64_t dim) {
    const int64_t wide = (cols + VL - 1) / VL * VL;
#if VL > 1
    float unpacked[4][MAX_DIM];
    for (int64_t j = 0; j < wide; j += 4) {
        float * column = out + j / W * W * dim + j % W;
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
            out[(j / W * dim + d) * W + j % W] = ((const float *) (k + j * stride))[d];
        }
    }
#endif
}

/* Packs values (cols, dim) into panels (ceil(dim / W), cols, W), with zeros beyond dim. */
TARGET static void NAME(pack_values)(float * out, const char * v, enum ggml_type type, size_t stride, int64_t cols,
                                     int64_t dim) {
    if (type != GGML_TYPE_F32 && type != GGML_TYPE_F16) {
        float row[MAX_DIM + W] = {0};
        for (int64_t j = 0; j < cols; ++j, v += stride) {
            NAME(floats)(row, v, type, dim);
            for (int64_t d = 0; d < dim; d += W) {
                memcpy(out + d * cols + j * W, row + d, W * sizeof *out);
            }
        }
        return;
    }
    for (int64_t d = 0; d < dim; d += W) {
        const char * values = v + d * (type == GGML_TYPE_F16 ? 2 : 4);
        for (int64_t j = 0; j < cols; ++j, out += W, values += stride) {
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
    float highest[SCRATCH_FLOATS / CHUNK + VL];
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

/* Computes the tiles of one key/value head over at most `step` keys of the run's range, from m on. */
TARGET static void NAME(head)(struct run * run, int64_t m, int64_t kv_head) {
    const struct job * const job = run->job;
    const struct ggml_tensor * const q = job->q;
    const struct ggml_tensor * const k = job->k;
    const struct ggml_tensor * const v = job->v;
    struct ggml_tensor * const dst = job->dst;
    const struct key_range range = run->range;
    const int64_t batch = range.batch, dim = q->ne[0], v_dim = v->ne[0];
    const int64_t v_pad = (v_dim + W - 1) / W * W;
    const int64_t step = job->step, first = run->first, last = run->last;
    const int64_t first_key = run->visible_to_any.from, cols = run->visible_to_any.to - first_key;
    float * const keys = run->scratch;
    float * const values = keys + dim * step;
    float * const scores = values + v_pad * step;
    float * const float_masks = scores + ROWS * step;
    int32_t list[SCRATCH_FLOATS / CHUNK]; /* more than step */

    const char * const k0 = cached_row_of(k, batch, kv_head, m + first_key);
    const char * const v0 = cached_row_of(v, batch, kv_head, m + first_key);
    const int dots_only = run->seen_pairs < MIN_ROWS_TO_PACK * cols;
    const int keys_in_place = dots_only && NAME(is_readable_in_place)(k);
    const int values_in_place = dots_only && NAME(is_readable_in_place)(v) && v_dim % VL == 0;
    const char * const key_rows = keys_in_place ? k0 : (const char *) keys;
    const char * const value_rows = values_in_place ? v0 : (const char *) values;
    const size_t key_stride = keys_in_place ? k->nb[2] : dim * sizeof(float);
    const size_t value_stride = values_in_place ? v->nb[2] : W * sizeof(float);
    if (!dots_only) {
        NAME(pack_keys)(keys, k0, k->type, k->nb[2], cols, dim);
    } else if (!keys_in_place) {
        for (int64_t j = 0; j < cols; ++j) {
            NAME(floats)(keys + j * dim, k0 + j * k->nb[2], k->type, dim);
        }
    }
    int packed = values_in_place;
    for (int64_t tile_index = first; tile_index < last; ++tile_index) {
        const struct visible_range seen = run->visible[tile_index - first];
        if (seen.from == seen.to) {
            continue;
        }
        const int64_t key = seen.from - first_key; /* a multiple of CHUNK: panels begin there */
        const int64_t width = seen.to - seen.from;
        const int64_t row = first_row(job, tile_index);
        const int count = (int) (first_row(job, tile_index + 1) - row);
        const NAME(tile_fn) multiply = NAME(tiles)[count];
        const float *q_rows[ROWS], *weights[ROWS], *masks[ROWS];
        float *score_rows[ROWS], *out[ROWS], keep[ROWS], gain[ROWS];
        const char * last_mask = NULL;
        int64_t n = row / job->group, h = kv_head * job->group + row % job->group;
        for (int r = 0; r < count; ++r) {
            q_rows[r] = (const float *) ((const char *) q->data + h * q->nb[1] + n * q->nb[2] + batch * q->nb[3]);
            out[r] = (float *) ((char *) dst->data + h * dst->nb[1] + n * dst->nb[2] + range.element * dst->nb[3]);
            const char * const mask = seen.plain ? NULL : mask_row(job->mask, m + seen.from, n, h, batch);
            masks[r] = (const float *) mask;
            if (mask != NULL && job->mask->type == GGML_TYPE_F16) {
                masks[r] = mask == last_mask ? masks[r - 1] : float_masks + r * step;
                if (mask != last_mask) {
                    NAME(floats)(float_masks + r * step, mask, GGML_TYPE_F16, width);
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
        float * const top = run->highest + index_in_run(run, kv_head, row);
        float * const sum = run->total + index_in_run(run, kv_head, row);
        char * const begun = run->begun + (kv_head - run->first_head) * (last - first) + tile_index - first;
        if (!*begun) {
            for (int r = 0; r < count; ++r) {
                const float * const sink =
                    job->sinks != NULL ? job->sinks + kv_head * job->group + (row + r) % job->group : NULL;
                top[r] = sink != NULL ? *sink : -INFINITY;
                sum[r] = sink != NULL ? 1.0f : 0.0f;
            }
        }
        /* Values of hidden keys are left out, not multiplied by 0: another sequence may have overflowed to inf or NaN
         * there. */
        int64_t n_seen;
        const int32_t * const visible = NAME(visible)(count, masks, width, list, &n_seen);
        if (dots_only) {
            const int is_f16 = keys_in_place && k->type == GGML_TYPE_F16, passes = (count + DOT_ROWS - 1) / DOT_ROWS;
            for (int p = 0; p < passes; ++p) {
                const int r = count * p / passes, rows = count * (p + 1) / passes - r;
                const NAME(dots_fn) dots = NAME(dot_tiles)[is_f16][rows];
                dots(q_rows + r, dim, visible, key_rows + key * key_stride, key_stride, n_seen, score_rows + r,
                     job->scale, p == 0 ? run : NULL);
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
            multiply(q_rows, dim, NULL, (const char *) (keys + key * dim), W * sizeof(float), dim * W * sizeof(float),
                     score_rows, (width + VL - 1) / VL * VL, NULL, gain);
        }
        for (int r = 0; r < count; ++r) {
            keep[r] = NAME(weigh)(score_rows[r], dots_only ? n_seen : width, job->softcap, masks[r], top + r, sum + r);
            gain[r] = run->is_one_step ? 1.0f / sum[r] : 1.0f;
            if (!dots_only && visible != NULL) {
                NAME(gather)(score_rows[r], score_rows[r], visible, n_seen);
            }
        }
        if (!packed) {
            NAME(pack_values)(values, v0, v->type, v->nb[2], cols, v_dim);
            packed = 1;
        }
        const float * const old = *begun ? keep : NULL;
        if (values_in_place) {
            const NAME(rows_fn) rows = NAME(tiles_in_place)[v->type == GGML_TYPE_F16][count];
            rows(weights, n_seen, visible, value_rows + key * value_stride, value_stride, out, v_dim, old, gain);
        } else {
            multiply(weights, n_seen, visible, value_rows + key * value_stride, value_stride, cols * W * sizeof(float),
                     out, v_dim, old, gain);
        }
        *begun = 1;
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
#undef SUM4
#undef MAX
#undef LOAD_PART
#undef LOAD_HALF
#undef HALF
