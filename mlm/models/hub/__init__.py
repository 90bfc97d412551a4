"""Folders of Hugging Face's `transformers`: their names for our parameters, and their files."""
