"""Answers questions from traces: tables of analyses, comparisons, characterized model zoos."""
