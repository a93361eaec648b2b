"""Comparisons: methods x seeds x values of epsilon on one data set and budget."""
