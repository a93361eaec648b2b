"""Small problems, runs and files that several test files share."""
