"""Batches: answer the requests of a file, in OpenAI's batch format, with models of this machine or of others."""
