# What the plugins share that have one library of ggml each: cuda, metal, rpc and vulkan. Their source distributions
# contain it: sdist.force-include. Include this file after the languages are enabled, then use, in this order:
#   hotshoe_add_ggml(OPTION...)                      gets ggml's source and adds its targets, with GGML_<OPTION> on
#   hotshoe_change_source(file output "old|new"...)  writes a changed copy of one of ggml's source files
#   hotshoe_ggml_plugin(target VARIABLE...)          installs the library, ggml's license and the manifest
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
set(HOTSHOE_GGML_SOURCE "" CACHE STRING "ggml source tree to use instead of the pinned one")
set(hotshoe_shared_cmake "${CMAKE_CURRENT_LIST_DIR}")
set(hotshoe_shared_native "${CMAKE_CURRENT_LIST_DIR}/../native") # its headers are for all plugins

# A macro, because ggml_source.cmake sets variables of the caller (ggml_dir).
macro(hotshoe_add_ggml)
  include("${hotshoe_shared_cmake}/ggml_source.cmake")
  foreach(option CPU OPENMP)
    set(GGML_${option} OFF CACHE BOOL "" FORCE)
  endforeach()
  foreach(option ${ARGN})
    set(GGML_${option} ON CACHE BOOL "" FORCE)
  endforeach()
  add_subdirectory("${ggml_dir}" "${CMAKE_CURRENT_BINARY_DIR}/ggml" EXCLUDE_FROM_ALL)
endmacro()

# Replaces text in a copy of a source file of ggml's. Each "old|new" must change something: another version of ggml may
# need other changes.
function(hotshoe_change_source file output)
  file(READ "${file}" source)
  foreach(change ${ARGN})
    string(REPLACE "|" ";" change "${change}")
    list(GET change 0 old)
    list(GET change 1 new)
    string(REPLACE "${old}" "${new}" changed "${source}")
    if(changed STREQUAL source)
      message(FATAL_ERROR "${file} has no `${old}`: ${PROJECT_NAME} is not written for this version of ggml")
    endif()
    set(source "${changed}")
  endforeach()
  file(CONFIGURE OUTPUT "${output}" CONTENT "${source}" @ONLY)
endfunction()

# The library finds libggml-base where pip installs hotshoe-ggml-cpu. VARIABLE...: environment variables that change
# what the plugin finds, or the beginnings of their names. PROBE_SECONDS n: how long its probe may take.
function(hotshoe_ggml_plugin target)
  cmake_parse_arguments(given "" "PROBE_SECONDS" "" ${ARGN})
  set(more "")
  if(given_PROBE_SECONDS)
    set(more --probe-seconds "${given_PROBE_SECONDS}")
  endif()
  set_property(TARGET ${target} PROPERTY VERSION)
  set_property(TARGET ${target} PROPERTY SOVERSION)
  if(WIN32)
    set_target_properties(${target} PROPERTIES PREFIX "")
  endif()
  hotshoe_name_ggml_base()
  hotshoe_look_in(${target} "/../../hotshoe_ggml/lib")
  add_custom_target(hotshoe_native ALL DEPENDS ${target})
  install(TARGETS ${target} RUNTIME DESTINATION lib LIBRARY DESTINATION lib)
  install(FILES "${ggml_dir}/LICENSE" DESTINATION licenses RENAME LICENSE.ggml)
  set(manifest "${CMAKE_CURRENT_BINARY_DIR}/hotshoe-plugin.json")
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${hotshoe_shared_cmake}/manifest.py"
            --ggml "${ggml_dir}" --environment ${given_UNPARSED_ARGUMENTS} ${more} --output "${manifest}"
    ERROR_VARIABLE error RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${error}")
  endif()
  install(FILES "${manifest}" DESTINATION .)
endfunction()
