"""What the loader knows about ggml's native libraries. Imports nothing of ggml and opens libraries in score only.

The loader knows ggml by name, and no other engine with native libraries. Reason: every ggml calls its base library
``libggml-base.so.0``, so a process can load one only. Only the loader sees all plugins, so only it can prevent a second
one. A test (tests/test_architecture.py) lists the modules outside this folder that import it.

file_names       how ggml names its files
native_result    the checked result of a provider's native(): GgmlLibraries
library_abi      which ggml a library and its libggml-base were built from
mapped           the libggml-base files that this process has loaded
vet_libraries    the checks before a library is opened: header, hash, version
score            opens a library, asks for its score, and chooses the best one
probe_libraries  vets, scores and tests the libraries of one provider, in the child process of its probe
verdicts         the verdicts on libraries and folders
without_plugin   libraries that no plugin brings: find, vet, verdicts
known_folders    where other software installs ggml's libraries
"""
