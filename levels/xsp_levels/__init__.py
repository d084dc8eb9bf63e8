"""The levels that come with xsp; each module holds the providers of one library."""
