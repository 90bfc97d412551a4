"""Model folders of Hugging Face's `transformers`: their tensor names and files."""
