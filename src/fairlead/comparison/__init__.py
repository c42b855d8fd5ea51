"""Several ways to train against training alone: who is better off, who is worse off, how sure is that.

asked        a comparison as it is asked for, checked
assess       on a user's own data: search, refit, folds
beside       other processes that train some of it
bench        what all of its runs have in common
tools        yardsticks in files, to be read again and taken home
yardsticks   what owners would do alone with standard tools
findings     every way to train judged against the best alone
all_rows     after folds, one more model from all rows
summarise    the verdict from the runs' figures
frames       the results as data frames
compare      the whole: compare, resume, run
recheck      the scores of a comparison again, from the raw file
"""
