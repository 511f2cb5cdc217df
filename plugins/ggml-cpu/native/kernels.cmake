# libhotshoe_kernels: our own versions of what ggml-cpu computes slowly, and of ggml's scheduler. It does not link to
# ggml: kernels only read struct ggml_tensor, and the scheduler calls functions that it is given.
add_library(hotshoe_kernels MODULE EXCLUDE_FROM_ALL
  native/hotshoe_activations.c
  native/hotshoe_attention.c
  native/hotshoe_isa.c
  native/hotshoe_linear.c
  native/hotshoe_log.c
  native/hotshoe_ops.c
  native/hotshoe_packing.c
  native/hotshoe_quants.c
  native/hotshoe_quants_avx2.c
  native/hotshoe_quants_avx512_vnni.c
  native/hotshoe_quants_avx_vnni.c
  native/hotshoe_quants_dotprod.c
  native/hotshoe_quants_pack.c
  native/hotshoe_recurrent.c
  native/hotshoe_schedule.c
  native/prefetch_choice.c)
target_include_directories(hotshoe_kernels PRIVATE "${ggml_dir}/include")
# a system's folder: gcc does not warn about functions of ggml-impl.h that we do not use
target_include_directories(hotshoe_kernels SYSTEM PRIVATE "${ggml_dir}/src")
target_compile_features(hotshoe_kernels PRIVATE c_std_11)
set_target_properties(hotshoe_kernels PROPERTIES C_VISIBILITY_PRESET hidden)
if(UNIX)
  target_link_libraries(hotshoe_kernels PRIVATE m)
endif()
if(WIN32)
  set_target_properties(hotshoe_kernels PROPERTIES PREFIX "")
endif()
if(CMAKE_C_COMPILER_ID MATCHES "GNU|Clang")
  # -O3 vectorises. No -ffast-math: it would "simplify" the rounding by 1.5 * 2^23 away.
  target_compile_options(hotshoe_kernels PRIVATE
    -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -Wall -Wextra)
endif()
if(CMAKE_C_COMPILER_ID MATCHES "GNU|Clang" AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  set_source_files_properties(native/hotshoe_quants_dotprod.c PROPERTIES COMPILE_OPTIONS -march=armv8.2-a+dotprod)
endif()
if(HOTSHOE_SANITIZE)
  # The first report ends the process, because a test with a printed report alone would pass. -O1 keeps the vector code
  # and the stacks.
  target_compile_options(hotshoe_kernels PRIVATE -O1 -g -fno-omit-frame-pointer -fsanitize=${HOTSHOE_SANITIZE}
                         -fno-sanitize-recover=all)
  target_link_options(hotshoe_kernels PRIVATE -fsanitize=${HOTSHOE_SANITIZE})
endif()
set(HOTSHOE_KERNEL_TARGETS hotshoe_kernels)
