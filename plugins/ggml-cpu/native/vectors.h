/* Vectors of floats for one instruction set, for hotshoe_attention_simd.h and hotshoe_recurrent_simd.h. Those are
 * included once for each set, and include this file each time: VL (floats of a vector), TARGET and SUFFIX are defined
 * then. Vectors are the compiler's own (vector_size). */

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
