/* Attention and norms in one pass each, as callbacks of ggml's custom ops (ggml_custom_4d).
 * Numbers are F32 unless a type is named. The params (userdata) must live as long as the graph. */
#ifndef HOTSHOE_ATTENTION_H
#define HOTSHOE_ATTENTION_H

#include "hotshoe_kernels.h"

enum {
    HOTSHOE_MAX_HEAD = 576,     /* elements of a head: DeepSeek's latent attention has 512, and 64 that rotate */
    HOTSHOE_KEY_PART = 512,     /* keys of a part: see hotshoe_attention */
    HOTSHOE_MAX_TEXTS = 4 << 10 /* the most lists, or batch elements, of a call */
};

struct hotshoe_attention_params {
    float scale;
    float softcap; /* 0: none */
    int32_t has_mask;
    int32_t has_ranges; /* not with a mask */
    int32_t has_slopes; /* only with ranges */
    int32_t has_sinks;
    void * scratch; /* see HOTSHOE_SCRATCH */
};

/* dst = softmax(scale * q k^T + mask) v, with max subtraction, computed in F32 (Vaswani et al. 2017; the online softmax
 * over steps of keys is that of Milakov and Gimelshein 2018).
 *
 * Shapes: dst [v_dim, heads, n, batch], contiguous, from the sources, in this order:
 *   q      [dim, heads, n, batch]
 *   k      [dim, kv_heads, m, batch]
 *   v      [v_dim, kv_heads, m, batch]
 *   mask   [m, n|1, heads|1, batch|1], only if params->has_mask
 *   cells  [l], I32, and ranges [3, n], I32, only if params->has_ranges; batch is 1. Query i reads the keys and values
 *          in cells[from] to cells[to - 1], where ranges[:, i] is list, from, to; the cells of its text begin at list.
 *          0 <= list <= from <= to <= l; other numbers are limited
 *   slopes [heads], only if params->has_slopes: a head adds slope * (i - to + 1) to the score of the key in cells[i]
 *   sinks  [heads], only if params->has_sinks: a score for each head that has no value
 * In all but dst, cells and ranges only ne[0] must be contiguous: views need no copy. dim and v_dim are at most 576.
 * Unless hotshoe_kernels_isa is "generic", the mask may be F16, and k and v may be F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0,
 * Q5_1 or IQ4_NL.
 *
 * A key is read once for all query heads that share it and, in prompts, for several queries. Keys at the end of m that
 * the mask hides (-inf) from a whole batch element cost nothing, and neither do ranges of keys that are hidden from
 * neighbouring queries. A query that sees no key gives NaN without sinks, as in NumPy, and 0 with sinks.
 *
 * With ranges, a query's result depends on its own keys only, to the last bit: not on the other queries of the call,
 * the number of threads, or the cells that the keys are in. Its sums have one order: keys are divided, from the
 * beginning of the list, into parts of HOTSHOE_KEY_PART and steps of 128 or fewer. (Without ranges the list begins with
 * cell 0, and a key that a mask hides from one query may change the order of sums of another.)
 *
 * Few queries of few key/value heads do not occupy many threads. Therefore parts can be computed by different threads:
 * if dst is [v_dim + 2, heads, n, batch * parts], the parts of a batch element follow each other, and each row has its
 * maximum score and its sum of weights behind its values. hotshoe_attention_merge then joins the parts and adds the
 * sinks. */
HOTSHOE_API void hotshoe_attention(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst [v_dim, heads, n, batch] from the parts that hotshoe_attention computed (src[0]), and the sinks (src[1]) if the
 * int32_t at userdata is not 0. */
HOTSHOE_API void hotshoe_attention_merge(struct ggml_tensor * dst, int ith, int nth, void * userdata);

struct hotshoe_norm_params {
    float eps;
    int32_t has_weight;
    int32_t has_bias; /* of hotshoe_layer_norm */
};

/* dst = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over ne[0]. The sources: x with contiguous rows; weight
 * [ne0] if params->has_weight; bias [ne0] if params->has_bias; both contiguous. */
HOTSHOE_API void hotshoe_layer_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst = x / sqrt(mean(x^2) + eps) * weight over ne[0]. The sources: x, and weight if params->has_weight. */
HOTSHOE_API void hotshoe_rms_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
