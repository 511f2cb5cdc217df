"""All that the loader knows of ggml. Libraries of another engine would have a room of their own beside this one.

libraries  what a provider's native() says: GgmlLibraries
names      how ggml names its files
cores      libggml-base, which all of a set's libraries need, and which ggml it is
mapped     which libggml-base files are in this process already
vet        what is refused before it is opened: by header, hash, version
score      what is opened and asked for its score; which one is the best
trial      all of that for one provider, in the child process of its probe
judge      the verdicts that follow, in the user's process
homes      where other software keeps ggml's libraries
"""
