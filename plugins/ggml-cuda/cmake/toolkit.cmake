# Finds nvcc and the libraries to link to, stands in for the driver's library, which build machines lack, and chooses
# the GPUs to build for.
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/toolkit.py"
  OUTPUT_VARIABLE toolkit ERROR_VARIABLE toolkit_error RESULT_VARIABLE toolkit_result OUTPUT_STRIP_TRAILING_WHITESPACE)
if(toolkit_result)
  message(FATAL_ERROR "${toolkit_error}")
endif()
list(GET toolkit 0 nvcc)
list(LENGTH toolkit parts)
if(parts GREATER 1)
  # Wheels: pip unpacks them into a new folder for each build, and a continued build must find the same paths.
  list(GET toolkit 1 root)
  set(CUDAToolkit_ROOT "${CMAKE_CURRENT_BINARY_DIR}/toolkit")
  file(REMOVE "${CUDAToolkit_ROOT}")
  file(CREATE_LINK "${root}" "${CUDAToolkit_ROOT}" SYMBOLIC)
  set(nvcc "${CUDAToolkit_ROOT}/bin/nvcc")
  # CMake tries nvcc by linking a program, and nvcc looks into lib64, which the wheels do not have.
  set(ENV{LIBRARY_PATH} "${CUDAToolkit_ROOT}/lib:$ENV{LIBRARY_PATH}")
  # CMake looks for names without a version, which their libraries do not have.
  foreach(name cudart cublas cublasLt)
    file(GLOB found "${CUDAToolkit_ROOT}/lib/lib${name}.so.*")
    if(NOT found)
      message(FATAL_ERROR
        "${root}/lib has no lib${name}.so.*: a wheel is missing. pip install nvidia-cublas nvidia-cuda-runtime")
    endif()
    set(CUDA_${name}_LIBRARY "${found}" CACHE FILEPATH "")
  endforeach()
  set(CUDA_CUDART "${CUDA_cudart_LIBRARY}" CACHE FILEPATH "")
endif()
set(CMAKE_CUDA_COMPILER "${nvcc}")
message(STATUS "nvcc: ${nvcc}")

# The memory pool of ggml-cuda calls the driver, libcuda.so.1, which is installed with the GPU. This stub stands in for
# it when the library is linked, as the toolkit's own stub does; the wheels have no stub.
if(UNIX AND NOT TARGET CUDA::cuda_driver)
  add_library(hotshoe_cuda_driver SHARED EXCLUDE_FROM_ALL "${CMAKE_CURRENT_LIST_DIR}/../native/driver_stub.c")
  set_target_properties(hotshoe_cuda_driver PROPERTIES OUTPUT_NAME cuda SOVERSION 1)
  add_library(CUDA::cuda_driver ALIAS hotshoe_cuda_driver)
endif()

# Turing and later: CUDA 13 knows no older ones. Machine code for all of them, as compiling PTX takes minutes at the first
# start, and a driver refuses PTX of a newer CUDA. Only GPUs that came later compile the PTX of 90.
set(HOTSHOE_RELEASE_ARCHITECTURES 75-real 80-real 86-real 89-real 90 100-real 120a-real)

function(hotshoe_choose_architectures wanted result)
  set(chosen "${wanted}")
  if(wanted STREQUAL "native")
    execute_process(
      COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE capabilities RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    set(chosen release)
    if(NOT failed AND capabilities MATCHES "^[0-9.\n ]+$")
      string(REGEX REPLACE "[. ]" "" capabilities "${capabilities}")
      string(REGEX REPLACE "\n+" ";" chosen "${capabilities}")
      list(TRANSFORM chosen APPEND "-real")
      list(REMOVE_DUPLICATES chosen)
    endif()
  endif()
  if(chosen STREQUAL "release")
    set(chosen ${HOTSHOE_RELEASE_ARCHITECTURES})
  endif()
  foreach(architecture IN LISTS chosen)
    if(NOT architecture MATCHES "^[0-9]+[af]?(-real|-virtual)?$")
      message(FATAL_ERROR
        "HOTSHOE_CUDA_ARCHITECTURES names '${architecture}'; expected native, release, or architectures such as 86 or "
        "90-real;120a-real")
    endif()
  endforeach()
  set(${result} "${chosen}" PARENT_SCOPE)
endfunction()
