/* Which instruction sets this CPU has: asked once, at the first call. */
#include "isa.h"

#include "hotshoe_kernels.h"

#if defined(HOTSHOE_X86)

#include <cpuid.h>
#include <stdatomic.h>

static int ask_cpu(void) {
    __builtin_cpu_init();
    int sets = 0;
    /* Every CPU with AVX2 has F16C, and not every compiler knows "f16c" here. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        sets |= CPU_AVX2;
    }
    if (sets && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
        sets |= CPU_AVX512;
        sets |= __builtin_cpu_supports("avx512bf16") ? CPU_AVX512_BF16 : 0;
        sets |= __builtin_cpu_supports("avx512vnni") ? CPU_AVX512_VNNI : 0;
    }
    /* Not every compiler that has AVX-VNNI's instructions knows "avxvnni" here. */
    unsigned a, b, c, d;
    if (sets && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 4 & 1) {
        sets |= CPU_AVX_VNNI;
    }
    return sets;
}

int hotshoe_cpu(void) {
    static _Atomic int known = -1;
    int sets = atomic_load_explicit(&known, memory_order_relaxed);
    if (sets < 0) { /* several threads may come here: all store the same value */
        sets = ask_cpu();
        atomic_store_explicit(&known, sets, memory_order_relaxed);
    }
    return sets;
}

#else

int hotshoe_cpu(void) { return 0; }

#endif

const char * hotshoe_kernels_isa(void) {
    const int sets = hotshoe_cpu();
    return sets & CPU_AVX512 ? "avx512" : sets & CPU_AVX2 ? "avx2" : "generic";
}
