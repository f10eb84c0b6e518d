//! Elementwise functions.

use phalanx_tensor::ops::UnaryOp;

use super::{Lowering, TracedOp};
use crate::error::Result;
use crate::node::Attribute;

impl Lowering {
    pub(super) fn unary(&mut self, op: TracedOp<'_>, function: UnaryOp) -> Result<String> {
        let x = self.input(op, 0)?;
        let none = Vec::new;
        Ok(match function {
            UnaryOp::Relu => self.emit("Relu", [x], none()),
            UnaryOp::ReluSquared => {
                let positive = self.emit("Relu", [x], none());
                self.emit("Mul", [positive.as_str(), &positive], none())
            }
            UnaryOp::Relu6 => self.clip(x, 0.0, 6.0),
            UnaryOp::Clamp { low, high } => self.clip(x, low, high),
            UnaryOp::LeakyRelu(slope) => {
                self.emit("LeakyRelu", [x], vec![("alpha", Attribute::Float(slope as f32))])
            }
            UnaryOp::Sigmoid => self.emit("Sigmoid", [x], none()),
            UnaryOp::Tanh => self.emit("Tanh", [x], none()),
            UnaryOp::Exp => self.emit("Exp", [x], none()),
            UnaryOp::Silu => {
                let gate = self.emit("Sigmoid", [x.as_str()], none());
                self.emit("Mul", [x, gate], none())
            }
            UnaryOp::QuickGelu => {
                let factor = self.scalar(1.702);
                let scaled = self.emit("Mul", [x.as_str(), &factor], none());
                let gate = self.emit("Sigmoid", [scaled], none());
                self.emit("Mul", [x, gate], none())
            }
            UnaryOp::GeluTanh => {
                // x · σ(a·x + b·x³)
                let linear = 2.0 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
                let (linear, cubic) = (self.scalar(linear), self.scalar(linear * 0.044_715));
                let square = self.emit("Mul", [x.as_str(), x.as_str()], none());
                let square = self.emit("Mul", [square.as_str(), &cubic], none());
                let factor = self.emit("Add", [square, linear], none());
                let scaled = self.emit("Mul", [x.as_str(), &factor], none());
                let gate = self.emit("Sigmoid", [scaled], none());
                self.emit("Mul", [x, gate], none())
            }
            UnaryOp::Gelu => {
                // x · (1 + erf(x/√2)) / 2
                let (factor, one, half) =
                    (self.scalar(std::f64::consts::FRAC_1_SQRT_2), self.scalar(1.0), self.scalar(0.5));
                let scaled = self.emit("Mul", [x.as_str(), &factor], none());
                let error = self.emit("Erf", [scaled], none());
                let sum = self.emit("Add", [error, one], none());
                let product = self.emit("Mul", [x, sum], none());
                self.emit("Mul", [product, half], none())
            }
        })
    }

    /// Adds min(max(x, low), high).
    pub(super) fn clip(&mut self, x: String, low: f64, high: f64) -> String {
        let (low, high) = (self.scalar(low), self.scalar(high));
        self.emit("Clip", [x, low, high], Vec::new())
    }

    /// Adds an operator of an op's input and a number.
    pub(super) fn with_scalar(
        &mut self,
        operator: &'static str,
        op: TracedOp<'_>,
        number: f64,
    ) -> Result<String> {
        let (x, number) = (self.input(op, 0)?, self.scalar(number));
        Ok(self.emit(operator, [x, number], Vec::new()))
    }
}
