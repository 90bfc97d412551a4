"""A laboratory for masked language models: what changes when only the architecture, the size or the masking rate does?"""
