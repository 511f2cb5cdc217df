# ggml's source tree in `ggml_dir`, as every ggml plugin takes it, and the settings that they share. Before it is included:
# Python found, the languages enabled, HOTSHOE_GGML_SOURCE set.
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/fetch_ggml.py"
          --into "${CMAKE_CURRENT_BINARY_DIR}/ggml-source" --source "${HOTSHOE_GGML_SOURCE}"
  OUTPUT_VARIABLE ggml_dir ERROR_VARIABLE fetch_error RESULT_VARIABLE fetch_result
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(fetch_result)
  message(FATAL_ERROR "${fetch_error}")
endif()
message(STATUS "ggml source: ${ggml_dir}")

# Assertions carry __FILE__: keep the build machine's paths out of the libraries.
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag("-ffile-prefix-map=a=b" HAVE_FILE_PREFIX_MAP)
if(HAVE_FILE_PREFIX_MAP)
  add_compile_options("-ffile-prefix-map=${ggml_dir}=ggml" "-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}=.")
endif()

set(BUILD_SHARED_LIBS ON)
set(GGML_BACKEND_DL ON CACHE BOOL "" FORCE)
foreach(option NATIVE CCACHE BUILD_TESTS BUILD_EXAMPLES METAL BLAS ACCELERATE) # native and BACKEND_DL refuse each other
  set(GGML_${option} OFF CACHE BOOL "" FORCE)
endforeach()
set(GGML_AVAILABLE_BACKENDS "" CACHE INTERNAL "") # ggml appends to it: a second configure must not double it

# After add_subdirectory(ggml): libggml-base has one name, that by which every other library asks for it at run time.
macro(hotshoe_name_ggml_base)
  set(major 0)
  if(DEFINED GGML_VERSION_MAJOR)
    set(major ${GGML_VERSION_MAJOR})
  endif()
  set_target_properties(ggml-base PROPERTIES VERSION ${major} SOVERSION ${major})
endmacro()

# Where a library looks for the others, from its own folder.
function(hotshoe_look_in target folder)
  if(APPLE)
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "@loader_path${folder}")
  elseif(UNIX)
    set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN${folder}")
  endif()
endfunction()
