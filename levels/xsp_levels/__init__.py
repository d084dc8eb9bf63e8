"""The levels that come with xsp: providers, which record what a library does, as rows."""
