"""Reports: records in, tables and plots out, beside the figures of the paper. Nothing is trained here."""
