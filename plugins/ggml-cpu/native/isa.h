/* Instruction sets: the function attributes that allow them, and the question which of them this CPU has.
 *
 * A kernel is compiled once for each instruction set, and the fastest is chosen at run time. target_clones would do the
 * same, but it needs ifunc, which musl and macOS lack. */
#ifndef HOTSHOE_ISA_H
#define HOTSHOE_ISA_H

#if defined(_MSC_VER) && !defined(__clang__)
#define ALWAYS_INLINE static __forceinline
#define NOINLINE __declspec(noinline)
#else
#define NOINLINE __attribute__((noinline))
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#endif

/* A loop whose length is a constant after its function was inlined: the compiler unrolls it completely. */
#if defined(__clang__)
/* A plain "unroll" unrolled only by two, before inlining, and was half as fast. */
#define UNROLL_FOR(...) _Pragma("clang loop unroll(full)") for (__VA_ARGS__)
#else
#define UNROLL_FOR(...) _Pragma("GCC unroll 16") for (__VA_ARGS__)
#endif

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define HOTSHOE_X86 1
#define AVX2 __attribute__((target("avx2,fma,f16c")))
#define AVX512 __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")))
#define AVX512_BF16 __attribute__((target("avx512bf16,avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c")))
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#define HOTSHOE_ARM 1 /* kernels.cmake names the instruction set of each file: older compilers need it there */
#endif

/* The bits of hotshoe_cpu(). CPU_AVX512 stands for F, VL, DQ and BW together. AVX512_BF16 and AVX512_VNNI are set only
 * with CPU_AVX512, and that only with CPU_AVX2. */
enum {
    CPU_AVX2 = 1,
    CPU_AVX512 = 2,
    CPU_AVX512_BF16 = 4,
    CPU_AVX512_VNNI = 8,
    CPU_AVX_VNNI = 16,
    CPU_DOTPROD = 32, /* ARM's products of four bytes */
    CPU_I8MM = 64,    /* ARM's products of 2 by 8 by 2 bytes */
};

/* A mask of the instruction sets that this CPU has and whose registers the system saves. */
int hotshoe_cpu(void);

#endif
