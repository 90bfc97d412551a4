"""A laboratory for masked language models: what changes when only the architecture, size or masking rate does?"""
