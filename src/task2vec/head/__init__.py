"""Linear classifiers on pooled features: the head of a task, and the heads of many training splits at once."""

from task2vec.head.fit import Head as Head
from task2vec.head.fit import TrainingSplits as TrainingSplits
from task2vec.head.fit import fit_head as fit_head
from task2vec.head.fit import fit_heads as fit_heads
from task2vec.head.fit import fit_split_heads as fit_split_heads
from task2vec.head.fit import image_weights as image_weights
from task2vec.head.fit import is_small as is_small
from task2vec.head.fit import make_training_splits as make_training_splits
from task2vec.head.fit import predict_held_out as predict_held_out
from task2vec.head.fit import to_onehot as to_onehot
from task2vec.head.fit import train_split_heads as train_split_heads
