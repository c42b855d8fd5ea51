"""Run folders: what is trained is kept in files, found again, and gone on with.

files        JSON, tables and tensors to disk and back, never half written
statefiles   clients' states on disk
identity     fingerprints of what a run was made from
checkpoint   a run's snapshot in one file
records      scores and costs of every round, as tables
run          one method with one seed in its folder: found there, or trained
material     the clients' data and the model that all methods of a seed share
summary      the shape of summary.json
deployment   what it takes to use a run's models on raw rows
"""
