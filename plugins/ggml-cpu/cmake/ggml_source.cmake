# Gets ggml's source tree (the variable ggml_dir) and makes the settings that all ggml plugins share. Before it is
# included, Python must be found, the languages enabled and HOTSHOE_GGML_SOURCE set.

# As many compilers as cores: ninja's default is two more, which only costs memory, and one nvcc takes a gigabyte or
# more.
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
set_property(GLOBAL PROPERTY JOB_POOLS compile=${cores})
set(CMAKE_JOB_POOL_COMPILE compile)

execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/fetch_ggml.py"
          --into "${CMAKE_CURRENT_BINARY_DIR}/ggml-source" --source "${HOTSHOE_GGML_SOURCE}"
  OUTPUT_VARIABLE ggml_dir ERROR_VARIABLE fetch_error RESULT_VARIABLE fetch_result
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(fetch_result)
  message(FATAL_ERROR "${fetch_error}")
endif()
message(STATUS "ggml source: ${ggml_dir}")

# Assertions contain __FILE__: keep the build machine's paths out of the libraries.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag("-ffile-prefix-map=a=b" HAVE_FILE_PREFIX_MAP)
if(HAVE_FILE_PREFIX_MAP)
  add_compile_options("-ffile-prefix-map=${ggml_dir}=ggml" "-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}=.")
endif()

set(BUILD_SHARED_LIBS ON)
set(GGML_BACKEND_DL ON CACHE BOOL "" FORCE)
# NATIVE and BACKEND_DL exclude each other.
foreach(option NATIVE CCACHE BUILD_TESTS BUILD_EXAMPLES METAL BLAS ACCELERATE)
  set(GGML_${option} OFF CACHE BOOL "" FORCE)
endforeach()
set(GGML_AVAILABLE_BACKENDS "" CACHE INTERNAL "") # ggml appends to it: a second configure must not add the same again

# Call this after add_subdirectory(ggml): libggml-base then has one name only, the one by which other libraries load it.
macro(hotshoe_name_ggml_base)
  set(major 0)
  if(DEFINED GGML_VERSION_MAJOR)
    set(major ${GGML_VERSION_MAJOR})
  endif()
  set_target_properties(ggml-base PROPERTIES VERSION ${major} SOVERSION ${major})
endmacro()

# Makes a library look for others in a folder, relative to its own.
function(hotshoe_look_in target folder)
  if(APPLE)
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "@loader_path${folder}")
  elseif(UNIX)
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN${folder}")
  endif()
endfunction()
