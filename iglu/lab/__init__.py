"""The lab: benchmarks, data, training and reports.  It stands on the library, never the other way round."""
