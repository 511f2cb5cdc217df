/* Attention and norms in one pass each, as callbacks of ggml's custom ops (ggml_custom_4d).
 * All is F32 unless said otherwise; thread `ith` of `nth` does its share, and the parameters must live as long as the graph. */
#ifndef HOTSHOE_ATTENTION_H
#define HOTSHOE_ATTENTION_H

#include "hotshoe_kernels.h"

/* softcap 0: none. The sources after q, k and v, in this order, each present if its flag is set: mask, sinks. */
struct hotshoe_attention_params {
    float scale;
    float softcap;
    int32_t has_mask;
    int32_t has_sinks;
};

/* dst = softmax(scale * q k^T + mask) v, with max subtraction, computed in F32 (Vaswani et al. 2017; the online softmax over
 * blocks of keys is that of Milakov and Gimelshein 2018).
 * q [dim, heads, n, batch], k [dim, kv_heads, m, batch], v [v_dim, kv_heads, m, batch], mask [m, n|1, heads|1, batch|1],
 * sinks [heads]: a score for each head that has no value; dst [v_dim, heads, n, batch], contiguous. Unless
 * hotshoe_kernels_isa is "generic" the mask may be F16, k and v F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and IQ4_NL. Only
 * ne[0] must be contiguous in the others: views need no copy. dim and v_dim up to 576. A key is read once for all query heads
 * that share it and, in prompts, for several queries. Keys that the mask hides (-inf) from a whole batch element at the end
 * of m cost nothing, nor do blocks of keys hidden from neighbouring queries: other sequences' cells. A query that sees no key
 * gives NaN without sinks, as in NumPy, and 0 with them.
 *
 * Few queries of few key/value heads do not occupy many threads, so the keys of each can be cut into n parts: dst is
 * [v_dim + 2, heads, n, batch * n] then, parts of a batch element one after the other, a row's maximum score and sum of
 * weights behind its values, and hotshoe_attention_merge follows, which has the sinks. */
HOTSHOE_API void hotshoe_attention(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst [v_dim, heads, n, batch] from what hotshoe_attention gave of the parts (src[0]), and sinks (src[1]) where the int32_t at
 * userdata is not 0. */
HOTSHOE_API void hotshoe_attention_merge(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* The sources that follow x, in this order, each present if its flag is set. rms_norm has no bias. */
struct hotshoe_norm_params {
    float eps;
    int32_t has_weight;
    int32_t has_bias;
};

/* dst = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias over ne[0]. x has contiguous rows; weight and bias are contiguous
 * [ne0]. */
HOTSHOE_API void hotshoe_layer_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata);

/* dst = x / sqrt(mean(x^2) + eps) * weight over ne[0]. */
HOTSHOE_API void hotshoe_rms_norm(struct ggml_tensor * dst, int ith, int nth, void * userdata);

#endif
