"""What the methods share: models that translate and learn, streams of sentences, records."""
