"""The table: every family goes through the same tests. docs/models.md says how a row is added."""
