//! Trains a small classifier on batches from the loader, so that the data is seen to be right.
//!
//! `cargo run --release --example train_digits [FOLDER]`, by default on `datasets/digits`. One image in five is kept
//! out of the training and used to test; labels that did not belong to their images would leave the accuracy at
//! about one in ten.

use gpufeed::{Dataset, LastBatch, Loader, Shuffle};

const PIXELS: usize = 64;
const HIDDEN: usize = 32;
const CLASSES: usize = 10;
const EPOCHS: u64 = 12;
const RATE: f32 = 0.05;

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or_else(|| "datasets/digits".into());
    let dataset = Dataset::open(&folder)?;
    let mut loader = Loader::builder(dataset)
        .batch_size(32)
        .shuffle(Shuffle::Full)
        .seed(1)
        .last_batch(LastBatch::Short)
        .build()?;

    let mut model = Model::new();
    for epoch in 0..EPOCHS {
        let (mut loss, mut seen) = (0.0, 0);
        for batch in loader.epoch(epoch)? {
            let batch = batch?;
            let (images, labels) = (batch.column("image")?, batch.column("label")?.bytes()?);
            for (row, &sample) in batch.samples().iter().enumerate() {
                if held_out(sample) {
                    continue;
                }
                let image = image(images.sample(row)?);
                loss += model.learn(&image, labels[row].into());
                seen += 1;
            }
        }
        println!("epoch {epoch:2}: mean loss {:.4} over {seen} images", loss / seen as f32);
    }

    let (mut right, mut tested) = (0, 0);
    for batch in loader.epoch(EPOCHS)? {
        let batch = batch?;
        let (images, labels) = (batch.column("image")?, batch.column("label")?.bytes()?);
        for (row, &sample) in batch.samples().iter().enumerate() {
            if held_out(sample) {
                let image = image(images.sample(row)?);
                right += usize::from(model.guess(&image) == usize::from(labels[row]));
                tested += 1;
            }
        }
    }
    println!("test accuracy {:.1} % of {tested} images it never saw", 100.0 * right as f32 / tested as f32);
    Ok(())
}

fn held_out(sample: u64) -> bool {
    sample.is_multiple_of(5)
}

/// Pixels are 0 to 16; the network likes them around 0.
fn image(pixels: &[u8]) -> [f32; PIXELS] {
    std::array::from_fn(|i| f32::from(pixels[i]) / 8.0 - 1.0)
}

/// One hidden layer of rectified units, softmax, and plain stochastic gradient descent.
struct Model {
    first: Vec<[f32; PIXELS]>,
    first_bias: [f32; HIDDEN],
    second: Vec<[f32; HIDDEN]>,
    second_bias: [f32; CLASSES],
}

impl Model {
    fn new() -> Self {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1u32 << 24) as f32 - 0.5
        };
        Model {
            first: (0..HIDDEN).map(|_| std::array::from_fn(|_| random() * 0.4)).collect(),
            first_bias: [0.0; HIDDEN],
            second: (0..CLASSES).map(|_| std::array::from_fn(|_| random() * 0.4)).collect(),
            second_bias: [0.0; CLASSES],
        }
    }

    /// The hidden units, and the probability of each class.
    fn forward(&self, image: &[f32; PIXELS]) -> ([f32; HIDDEN], [f32; CLASSES]) {
        let hidden: [f32; HIDDEN] =
            std::array::from_fn(|h| (dot(&self.first[h], image) + self.first_bias[h]).max(0.0));
        let scores: [f32; CLASSES] =
            std::array::from_fn(|c| dot(&self.second[c], &hidden) + self.second_bias[c]);
        let largest = scores.iter().copied().fold(f32::MIN, f32::max);
        let powers = scores.map(|score| (score - largest).exp());
        let sum: f32 = powers.iter().sum();
        (hidden, powers.map(|power| power / sum))
    }

    /// One step on one image. Returns the loss before the step.
    fn learn(&mut self, image: &[f32; PIXELS], label: usize) -> f32 {
        let (hidden, probabilities) = self.forward(image);
        let mut back = [0.0; HIDDEN];
        for (class, probability) in probabilities.iter().enumerate() {
            let error = probability - f32::from(u8::from(class == label));
            for h in 0..HIDDEN {
                back[h] += error * self.second[class][h];
                self.second[class][h] -= RATE * error * hidden[h];
            }
            self.second_bias[class] -= RATE * error;
        }
        for h in (0..HIDDEN).filter(|&h| hidden[h] > 0.0) {
            for (weight, pixel) in self.first[h].iter_mut().zip(image) {
                *weight -= RATE * back[h] * pixel;
            }
            self.first_bias[h] -= RATE * back[h];
        }
        -probabilities[label].max(1e-9).ln()
    }

    fn guess(&self, image: &[f32; PIXELS]) -> usize {
        let (_, probabilities) = self.forward(image);
        (0..CLASSES).max_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b])).unwrap_or(0)
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}
