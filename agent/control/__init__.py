"""The level-triggered loop: observe -> plan -> act -> report, in files of these names."""
