"""What tests share: readers that know nothing of Tidemark."""
